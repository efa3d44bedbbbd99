"""The engine, for use in one process: `build_engine(EngineConfig(...)).generate([...])`."""

from specdec.engine.async_engine import AsyncEngine
from specdec.engine.builder import build_engine
from specdec.engine.engine import Engine
from specdec.engine.request import GenerateRequest

__all__ = ["AsyncEngine", "Engine", "GenerateRequest", "build_engine"]
