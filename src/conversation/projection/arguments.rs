//! Tool arguments in one form: keys sorted, numbers by value, empty and default values pruned.

use std::collections::BTreeMap;

use serde_json::Value;

/// The canonical form of arguments as a model wrote them. What is no JSON is only trimmed.
pub fn canonical(text: &str) -> String {
    match serde_json::from_str::<Value>(text) {
        Ok(value) => prune(value).map_or_else(String::new, |value| value.to_string()),
        Err(_) => text.trim().to_owned(),
    }
}

/// The texts among arguments, at any depth.
pub fn texts(arguments: &str) -> Vec<String> {
    fn collect(value: Value, texts: &mut Vec<String>) {
        match value {
            Value::String(text) => texts.push(text),
            Value::Array(items) => items.into_iter().for_each(|item| collect(item, texts)),
            Value::Object(fields) => fields.into_iter().for_each(|(_, field)| collect(field, texts)),
            _ => {}
        }
    }
    let mut texts = Vec::new();
    if let Ok(value) = serde_json::from_str(arguments) {
        collect(value, &mut texts);
    }
    texts
}

/// `None` for a value that clients drop on re-sending: null, false, 0, empty text, list or object. Elements of lists
/// keep their places. Keys are sorted here, as whether `serde_json` does so depends on how it was built.
fn prune(value: Value) -> Option<Value> {
    match value {
        Value::Null | Value::Bool(false) => None,
        Value::Bool(true) => Some(value),
        Value::Number(number) => match number.as_f64() {
            Some(0.0) => None,
            Some(float) if float.fract() == 0.0 && float.abs() < 9e15 => Some(Value::from(float as i64)),
            _ => Some(Value::Number(number)),
        },
        Value::String(text) => (!text.is_empty()).then_some(Value::String(text)),
        Value::Array(items) => {
            let kept: Vec<Value> = items.into_iter().map(|item| prune(item).unwrap_or(Value::Null)).collect();
            (!kept.is_empty()).then_some(Value::Array(kept))
        }
        Value::Object(fields) => {
            let kept: BTreeMap<String, Value> =
                fields.into_iter().filter_map(|(key, value)| Some((key, prune(value)?))).collect();
            (!kept.is_empty()).then(|| Value::Object(kept.into_iter().collect()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::canonical;

    #[test]
    fn forms_that_mean_the_same_are_one() {
        assert_eq!(canonical(r#"{"b":1.0,"a":{"x":null},"c":[0,"",2.5]}"#), r#"{"b":1,"c":[null,null,2.5]}"#);
        assert_eq!(canonical(r#"{"z":1,"y":true}"#), canonical(r#"{ "y" : true, "z" : 1, "w": false }"#));
        assert_eq!(canonical(" {not json "), "{not json");
        assert_eq!(canonical("{}"), "");
    }
}
