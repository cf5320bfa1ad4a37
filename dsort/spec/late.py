"""Parts of a spec whose models are built, and some also loaded, when a spec has them. A spec has
few parts; to build the models of all takes a tenth of the command of a small job."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

from msgspec import Struct
from pydantic import (
    BaseModel,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
)
from pydantic_core import CoreSchema, core_schema

__all__ = ["LATE", "LATER", "Late", "late_part"]


class Late(Struct, frozen=True):
    """Marks a field whose values are of a model that is built late. ``place``: the module and the
    name of the model; "" for the model that the field names itself."""

    place: str = ""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        def validate(value: Any, info: ValidationInfo) -> BaseModel:
            return self.model(source).model_validate(value, context=info.context)

        return core_schema.with_info_plain_validator_function(validate, metadata={"of": source})

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        model = self.model(schema["metadata"]["of"])
        model.model_rebuild()
        built: Any = model.__pydantic_core_schema__
        body, others = built, []
        if built["type"] == "definitions":
            body, others = built["schema"], built["definitions"]
        ref = f"{model.__module__}.{model.__qualname__}:{id(model)}"
        return handler(core_schema.definitions_schema({**body, "ref": ref}, others))

    def model(self, source: Any) -> type[BaseModel]:
        """The model of the values. ``source``: the type that the field names."""
        if not self.place:
            named: type[BaseModel] = source
            return named
        module, _, name = self.place.partition(":")
        found: type[BaseModel] = getattr(import_module(module), name)
        return found


LATE = Late()
"""The mark of a field: ``Annotated[Mix, LATE]``."""


def late_part(place: str) -> Any:
    """The type of a field whose model is at ``place``: ``dsort.spec.ingest:Ingest``."""
    return Annotated[Any, Late(place)]


class _Later(Struct, frozen=True):
    """Marks a field that was added after the first specs: a canonical spec leaves it out where it
    is the default, so that digests of specs that do not use it stay the same."""


LATER = _Later()
