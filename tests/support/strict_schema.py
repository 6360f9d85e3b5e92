"""JSON against a schema of ours, which has to know every field."""

import jsonschema


def strict(schema):
    """The schema in which nothing may stand that it does not know."""
    if isinstance(schema, list):
        return list(map(strict, schema))
    if not isinstance(schema, dict):
        return schema
    inner = {key: strict(value) for key, value in schema.items()}
    if isinstance(inner.get("properties"), dict) and inner.get("type") == "object":
        inner["additionalProperties"] = False
    return inner


def validate(value, schema):
    """Nothing; raises where the value is not what the schema says, or holds more than it knows."""
    jsonschema.validate(value, strict(schema), cls=jsonschema.Draft202012Validator)
