from specdec.v1 import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class InfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InfoResponse(_message.Message):
    __slots__ = ("model", "tokenizer_hash", "vocab_size", "max_model_len", "drafter_kind", "protocol_version", "incarnation", "max_num_speculative_tokens")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_HASH_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_KIND_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SPECULATIVE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: str
    tokenizer_hash: str
    vocab_size: int
    max_model_len: int
    drafter_kind: str
    protocol_version: int
    incarnation: int
    max_num_speculative_tokens: int
    def __init__(self, model: _Optional[str] = ..., tokenizer_hash: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_model_len: _Optional[int] = ..., drafter_kind: _Optional[str] = ..., protocol_version: _Optional[int] = ..., incarnation: _Optional[int] = ..., max_num_speculative_tokens: _Optional[int] = ...) -> None: ...

class VocabularyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class VocabularyResponse(_message.Message):
    __slots__ = ("first_token_id", "tokens")
    FIRST_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    first_token_id: int
    tokens: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, first_token_id: _Optional[int] = ..., tokens: _Optional[_Iterable[str]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("target_id", "incarnation", "connection", "protocol_version", "model", "vocab_size")
    TARGET_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    target_id: str
    incarnation: int
    connection: int
    protocol_version: int
    model: str
    vocab_size: int
    def __init__(self, target_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., connection: _Optional[int] = ..., protocol_version: _Optional[int] = ..., model: _Optional[str] = ..., vocab_size: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("incarnation", "protocol_version")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    protocol_version: int
    def __init__(self, incarnation: _Optional[int] = ..., protocol_version: _Optional[int] = ...) -> None: ...

class SpeculateRequest(_message.Message):
    __slots__ = ("hello", "commits", "closes", "heartbeat")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    CLOSES_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    commits: _containers.RepeatedCompositeFieldContainer[Commit]
    closes: _containers.RepeatedCompositeFieldContainer[Close]
    heartbeat: Heartbeat
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., commits: _Optional[_Iterable[_Union[Commit, _Mapping]]] = ..., closes: _Optional[_Iterable[_Union[Close, _Mapping]]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ...) -> None: ...

class SpeculateResponse(_message.Message):
    __slots__ = ("welcome", "proposals", "resyncs", "heartbeat")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    PROPOSALS_FIELD_NUMBER: _ClassVar[int]
    RESYNCS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    proposals: _containers.RepeatedCompositeFieldContainer[Proposal]
    resyncs: _containers.RepeatedCompositeFieldContainer[Resync]
    heartbeat: Heartbeat
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., proposals: _Optional[_Iterable[_Union[Proposal, _Mapping]]] = ..., resyncs: _Optional[_Iterable[_Union[Resync, _Mapping]]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("session_id", "epoch", "base_len", "round", "token_ids", "k", "deadline_us")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BASE_LEN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_US_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    epoch: int
    base_len: int
    round: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    k: int
    deadline_us: int
    def __init__(self, session_id: _Optional[int] = ..., epoch: _Optional[int] = ..., base_len: _Optional[int] = ..., round: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., k: _Optional[int] = ..., deadline_us: _Optional[int] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ("session_id", "epoch")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    epoch: int
    def __init__(self, session_id: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("sequence_number", "sent_ns", "num_free_blocks", "idle_fraction", "draft_step_ms", "draining", "num_targets")
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    SENT_NS_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    IDLE_FRACTION_FIELD_NUMBER: _ClassVar[int]
    DRAFT_STEP_MS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    NUM_TARGETS_FIELD_NUMBER: _ClassVar[int]
    sequence_number: int
    sent_ns: int
    num_free_blocks: int
    idle_fraction: float
    draft_step_ms: float
    draining: bool
    num_targets: int
    def __init__(self, sequence_number: _Optional[int] = ..., sent_ns: _Optional[int] = ..., num_free_blocks: _Optional[int] = ..., idle_fraction: _Optional[float] = ..., draft_step_ms: _Optional[float] = ..., draining: bool = ..., num_targets: _Optional[int] = ...) -> None: ...

class SparseLaw(_message.Message):
    __slots__ = ("token_ids", "weights")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    weights: bytes
    def __init__(self, token_ids: _Optional[bytes] = ..., weights: _Optional[bytes] = ...) -> None: ...

class Proposal(_message.Message):
    __slots__ = ("session_id", "epoch", "base_len", "round", "token_ids", "laws", "reason", "draft_us")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BASE_LEN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LAWS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DRAFT_US_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    epoch: int
    base_len: int
    round: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    laws: _containers.RepeatedCompositeFieldContainer[SparseLaw]
    reason: str
    draft_us: int
    def __init__(self, session_id: _Optional[int] = ..., epoch: _Optional[int] = ..., base_len: _Optional[int] = ..., round: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., laws: _Optional[_Iterable[_Union[SparseLaw, _Mapping]]] = ..., reason: _Optional[str] = ..., draft_us: _Optional[int] = ...) -> None: ...

class Resync(_message.Message):
    __slots__ = ("session_id", "epoch", "reason")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    epoch: int
    reason: str
    def __init__(self, session_id: _Optional[int] = ..., epoch: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class SyncRequest(_message.Message):
    __slots__ = ("hello", "open", "open_tokens", "close")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    OPEN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    open: Open
    open_tokens: OpenTokens
    close: Close
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., open: _Optional[_Union[Open, _Mapping]] = ..., open_tokens: _Optional[_Union[OpenTokens, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ...) -> None: ...

class SyncResponse(_message.Message):
    __slots__ = ("welcome",)
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("session_id", "epoch", "num_prompt_tokens", "num_output_tokens", "token_ids", "params", "seed", "verification", "traceparent")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    VERIFICATION_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    epoch: int
    num_prompt_tokens: int
    num_output_tokens: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    params: _sampling_pb2.SamplingParams
    seed: int
    verification: _sampling_pb2.Verification
    traceparent: str
    def __init__(self, session_id: _Optional[int] = ..., epoch: _Optional[int] = ..., num_prompt_tokens: _Optional[int] = ..., num_output_tokens: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., params: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., seed: _Optional[int] = ..., verification: _Optional[_Union[_sampling_pb2.Verification, str]] = ..., traceparent: _Optional[str] = ...) -> None: ...

class OpenTokens(_message.Message):
    __slots__ = ("session_id", "epoch", "token_ids")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    epoch: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session_id: _Optional[int] = ..., epoch: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...
