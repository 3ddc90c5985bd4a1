//! Whether a value fits a JSON Schema, by the part of it that tool definitions use.
//!
//! Looked at: `type`, `required`, `enum`, `properties`, `items` where it is one schema, and `additionalProperties: false`.
//! Where a schema says more than that in a way that could allow what these forbid (`$ref`, `anyOf` and the like), its
//! value is taken to fit: what is reported as a mismatch is one.

use serde_json::Value;

/// The deepest that is looked at.
const DEPTH: usize = 32;
/// Keywords beside which the others are not the whole truth.
const BEYOND: [&str; 10] = [
    "$ref",
    "$dynamicRef",
    "anyOf",
    "oneOf",
    "allOf",
    "not",
    "if",
    "patternProperties",
    "dependentSchemas",
    "unevaluatedProperties",
];

/// Whether `value` fits `schema`, as far as that is looked at.
pub fn fits(schema: &Value, value: &Value) -> bool {
    is_fit(schema, value, DEPTH)
}

fn is_fit(schema: &Value, value: &Value, depth: usize) -> bool {
    let Value::Object(rules) = schema else { return schema != &Value::Bool(false) };
    if depth == 0 || BEYOND.iter().any(|keyword| rules.contains_key(*keyword)) {
        return true;
    }
    let typed = rules.get("type").is_none_or(|kind| is_of(kind, value));
    let listed = rules.get("enum").and_then(Value::as_array).is_none_or(|list| list.contains(value));
    typed
        && listed
        && match value {
            Value::Object(fields) => {
                let required = rules.get("required").and_then(Value::as_array);
                let mut required = required.into_iter().flatten().filter_map(Value::as_str);
                let known = rules.get("properties").and_then(Value::as_object);
                let closed = rules.get("additionalProperties") == Some(&Value::Bool(false));
                required.all(|name| fields.contains_key(name))
                    && fields.iter().all(|(name, value)| match known.and_then(|known| known.get(name)) {
                        Some(schema) => is_fit(schema, value, depth - 1),
                        None => !closed,
                    })
            }
            Value::Array(items) => rules
                .get("items")
                .is_none_or(|schema| items.iter().all(|item| is_fit(schema, item, depth - 1))),
            _ => true,
        }
}

fn is_of(kind: &Value, value: &Value) -> bool {
    match kind {
        Value::Array(kinds) => kinds.iter().any(|kind| is_of(kind, value)),
        Value::String(kind) => match kind.as_str() {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "null" => value.is_null(),
            "number" => value.is_number(),
            // 3.0 is an integer to JSON Schema.
            "integer" => {
                value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
            }
            _ => true,
        },
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn each_keyword_forbids_and_allows() {
        let object = json!({"type": "object", "properties": {
                "path": {"type": "string"}, "depth": {"type": "integer"},
                "kind": {"enum": ["file", "folder"]}, "names": {"type": "array", "items": {"type": "string"}},
                "any": {"type": ["string", "null"]}
            }, "required": ["path"], "additionalProperties": false});
        let cases = [
            (json!({"path": "a"}), true),
            (json!({"path": "a", "depth": 3, "kind": "file", "names": ["x"], "any": null}), true),
            (json!({"path": "a", "depth": 3.0}), true),
            (json!({"path": "a", "names": []}), true),
            (json!({}), false),
            (json!([]), false),
            (json!(null), false),
            (json!({"path": 1}), false),
            (json!({"path": "a", "depth": 3.5}), false),
            (json!({"path": "a", "depth": "3"}), false),
            (json!({"path": "a", "kind": "link"}), false),
            (json!({"path": "a", "names": ["x", 1]}), false),
            (json!({"path": "a", "any": 1}), false),
            (json!({"path": "a", "other": 1}), false),
        ];
        for (value, expected) in cases {
            assert_eq!(fits(&object, &value), expected, "{value}");
        }
    }

    #[test]
    fn what_is_not_looked_at_forbids_nothing() {
        for schema in [
            json!({"$ref": "#/x", "type": "string"}),
            json!({"anyOf": [{"type": "string"}], "type": "string"}),
            json!({"type": "of next year"}),
            json!({"items": [{"type": "string"}]}),
            json!(true),
            json!(3),
        ] {
            assert!(fits(&schema, &json!([1])), "{schema}");
        }
        assert!(!fits(&json!(false), &json!(1)));
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a-z]{0,3}".prop_map(Value::from),
            Just(json!("object")),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            let name = prop::sample::select(vec!["type", "properties", "items", "required", "enum", "a"]);
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(name.prop_map(str::to_owned), inner, 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_schema_is_survived(schema in value(), value in value()) {
            let _ = fits(&schema, &value);
        }
    }
}
