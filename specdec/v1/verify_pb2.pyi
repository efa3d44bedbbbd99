from specdec.v1 import draft_pb2 as _draft_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VerifyRequest(_message.Message):
    __slots__ = ("info", "proposals", "resyncs", "heartbeat")
    INFO_FIELD_NUMBER: _ClassVar[int]
    PROPOSALS_FIELD_NUMBER: _ClassVar[int]
    RESYNCS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    info: _draft_pb2.InfoResponse
    proposals: _containers.RepeatedCompositeFieldContainer[_draft_pb2.Proposal]
    resyncs: _containers.RepeatedCompositeFieldContainer[_draft_pb2.Resync]
    heartbeat: _draft_pb2.Heartbeat
    def __init__(self, info: _Optional[_Union[_draft_pb2.InfoResponse, _Mapping]] = ..., proposals: _Optional[_Iterable[_Union[_draft_pb2.Proposal, _Mapping]]] = ..., resyncs: _Optional[_Iterable[_Union[_draft_pb2.Resync, _Mapping]]] = ..., heartbeat: _Optional[_Union[_draft_pb2.Heartbeat, _Mapping]] = ...) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("hello", "opens", "open_tokens", "commits", "closes", "heartbeat")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    OPENS_FIELD_NUMBER: _ClassVar[int]
    OPEN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    CLOSES_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    hello: _draft_pb2.Hello
    opens: _containers.RepeatedCompositeFieldContainer[_draft_pb2.Open]
    open_tokens: _containers.RepeatedCompositeFieldContainer[_draft_pb2.OpenTokens]
    commits: _containers.RepeatedCompositeFieldContainer[_draft_pb2.Commit]
    closes: _containers.RepeatedCompositeFieldContainer[_draft_pb2.Close]
    heartbeat: _draft_pb2.Heartbeat
    def __init__(self, hello: _Optional[_Union[_draft_pb2.Hello, _Mapping]] = ..., opens: _Optional[_Iterable[_Union[_draft_pb2.Open, _Mapping]]] = ..., open_tokens: _Optional[_Iterable[_Union[_draft_pb2.OpenTokens, _Mapping]]] = ..., commits: _Optional[_Iterable[_Union[_draft_pb2.Commit, _Mapping]]] = ..., closes: _Optional[_Iterable[_Union[_draft_pb2.Close, _Mapping]]] = ..., heartbeat: _Optional[_Union[_draft_pb2.Heartbeat, _Mapping]] = ...) -> None: ...
