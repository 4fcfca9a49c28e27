"""Base of the values that users get: each goes into JSON data and comes back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Self


class Data:
    """Value with a form as plain JSON data, spelt as the contract spells it: money and times are texts.

    pydantic and FastAPI take every such value as a field, an argument or an answer. There it masks phone numbers, as
    `to_dict` does with `mask`, unless the context of the serialization says ``{"mask": False}``.
    """

    __slots__ = ()

    def to_dict(self, *, mask: bool = False) -> dict[str, Any]:
        """Return the value as plain JSON data, without optional fields that are empty and without a login's token.

        Args:
            mask: For logs and web answers: masks phone numbers, and redacts notes, your references and texts of errors.
                `from_dict` refuses data with a masked phone number.
        """
        # Here, and below: cattrs takes a third of the package's import.
        from mobilemoney_async.contract.converter import converter, masked

        data: dict[str, Any] = (masked if mask else converter).unstructure(self)
        return data

    def to_json(self, *, mask: bool = False) -> str:
        """Return the data of `to_dict` as JSON text, in ASCII: any text of the service fits into any database.

        Args:
            mask: As of `to_dict`.
        """
        return json.dumps(self.to_dict(mask=mask), separators=(",", ":"))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the value of plain JSON data. Fields that it does not know are ignored.

        Raises:
            InvalidRequest: The data is not that of such a value, or a phone number is masked. The error names the
                place, such as ``$.amount``, and never shows the data.
        """
        from mobilemoney_async.contract.converter import converter

        return converter.structure(data, cls)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        # Called by pydantic only.
        from mobilemoney_async.contract.json_schema import core_schema

        return core_schema(cls)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        from mobilemoney_async.contract.json_schema import object_schema

        return object_schema(cls, is_written=handler.mode == "serialization")
