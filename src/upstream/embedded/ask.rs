//! A request to the engine, read strictly: what it cannot do is refused, not ignored.

use serde_json::{Map, Value};
use serin_engine::{Chat, Prompt};

/// A chat or completion request.
#[derive(Debug)]
pub struct Ask {
    pub model: String,
    pub prompt: Prompt,
    pub chat: bool,
    pub stream: bool,
    pub include_usage: bool,
    pub max_tokens: usize,
    pub temperature: f32,
    pub top_p: f32,
    pub seed: Option<u64>,
    pub stop: Vec<String>,
}

/// Tokens generated when the request names no limit.
const DEFAULT_MAX_TOKENS: usize = 1024;
/// Sampling when the request names none: what the makers of small instruction models advise; at 1 they ramble.
const DEFAULT_TEMPERATURE: f32 = 0.2;
const DEFAULT_TOP_P: f32 = 0.9;

/// Parameters that change nothing we do, and so may be there.
const HARMLESS: [&str; 12] = [
    "user",
    "metadata",
    "store",
    "parallel_tool_calls",
    "reasoning_effort",
    "service_tier",
    "prompt_cache_key",
    "safety_identifier",
    "chat_template_kwargs",
    "tool_choice",
    "include_reasoning",
    "separate_reasoning",
];

/// Whether a value asks for nothing.
type AsksNothing = fn(&Value) -> bool;

/// Parameters that may be there with the value that asks for nothing.
const NEUTRAL: [(&str, AsksNothing); 9] = [
    ("n", |v| v.as_u64() == Some(1)),
    ("best_of", |v| v.as_u64() == Some(1)),
    ("logprobs", |v| *v == Value::Bool(false)),
    ("echo", |v| *v == Value::Bool(false)),
    ("frequency_penalty", |v| v.as_f64() == Some(0.0)),
    ("presence_penalty", |v| v.as_f64() == Some(0.0)),
    ("logit_bias", |v| v.as_object().is_some_and(Map::is_empty)),
    ("response_format", |v| v["type"] == "text"),
    ("suffix", |v| v.as_str() == Some("")),
];

impl Ask {
    /// Reads a request body. Errors are for the client: what, where and what would do.
    pub fn parse(bytes: &[u8], chat: bool) -> Result<Self, String> {
        let body: Value =
            serde_json::from_slice(bytes).map_err(|error| format!("the body is not JSON: {error}"))?;
        let Value::Object(mut fields) = body else { return Err("the body is not a JSON object".to_owned()) };
        fields.retain(|_, value| !value.is_null());
        let mut take = |name: &str| fields.remove(name);
        let ask = Self {
            model: text(take("model"), "model")?.unwrap_or_default(),
            prompt: if chat { messages(take("messages"), take("tools"))? } else { prompt(take("prompt"))? },
            chat,
            stream: flag(take("stream"), "stream")?,
            include_usage: take("stream_options").is_some_and(|options| options["include_usage"] == true),
            max_tokens: max_tokens(take("max_completion_tokens"), take("max_tokens"))?,
            temperature: within(take("temperature"), "temperature", DEFAULT_TEMPERATURE, 0.0, 2.0)?,
            top_p: within(take("top_p"), "top_p", DEFAULT_TOP_P, 0.0, 1.0)?,
            seed: take("seed")
                .map(|seed| seed.as_i64().map(|s| s as u64).ok_or("seed must be an integer"))
                .transpose()?,
            stop: stop(take("stop"))?,
        };
        refuse_rest(&fields)?;
        Ok(ask)
    }
}

fn refuse_rest(fields: &Map<String, Value>) -> Result<(), String> {
    for (name, value) in fields {
        let neutral = NEUTRAL.iter().any(|(neutral, asks_nothing)| neutral == name && asks_nothing(value));
        if !neutral && !HARMLESS.contains(&name.as_str()) {
            return Err(format!("the embedded engine does not support {name:?} (as sent); leave it out"));
        }
    }
    Ok(())
}

fn text(value: Option<Value>, name: &str) -> Result<Option<String>, String> {
    match value {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("{name} must be a string")),
    }
}

fn flag(value: Option<Value>, name: &str) -> Result<bool, String> {
    value.map_or(Ok(false), |value| value.as_bool().ok_or(format!("{name} must be true or false")))
}

fn within(value: Option<Value>, name: &str, default: f32, low: f32, high: f32) -> Result<f32, String> {
    let Some(value) = value else { return Ok(default) };
    let number = value.as_f64().map(|number| number as f32).filter(|number| (low..=high).contains(number));
    number.ok_or_else(|| format!("{name} must be a number from {low} to {high}"))
}

fn max_tokens(newer: Option<Value>, older: Option<Value>) -> Result<usize, String> {
    let Some(value) = newer.or(older) else { return Ok(DEFAULT_MAX_TOKENS) };
    let number = value.as_u64().filter(|number| *number > 0).and_then(|number| usize::try_from(number).ok());
    number.ok_or_else(|| "max_tokens must be a whole number above 0".to_owned())
}

fn stop(value: Option<Value>) -> Result<Vec<String>, String> {
    let stops = match value {
        None => Vec::new(),
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(many)) => many
            .into_iter()
            .map(|stop| text(Some(stop), "stop").map(Option::unwrap_or_default))
            .collect::<Result<_, _>>()?,
        Some(_) => return Err("stop must be a string or a list of strings".to_owned()),
    };
    match stops.len() <= 4 && stops.iter().all(|stop| !stop.is_empty()) {
        true => Ok(stops),
        false => Err("stop takes at most 4 strings, none of them empty".to_owned()),
    }
}

fn messages(value: Option<Value>, tools: Option<Value>) -> Result<Prompt, String> {
    match value {
        Some(Value::Array(messages)) if !messages.is_empty() => Ok(Prompt::Chat(Chat { messages, tools })),
        _ => Err("messages must be a list with at least one message".to_owned()),
    }
}

fn prompt(value: Option<Value>) -> Result<Prompt, String> {
    match value {
        Some(Value::String(text)) => Ok(Prompt::Text(text)),
        Some(Value::Array(list)) if list.len() == 1 && list[0].is_string() => {
            Ok(Prompt::Text(list[0].as_str().unwrap_or_default().to_owned()))
        }
        _ => Err("prompt must be one string".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(body: &str) -> Result<Ask, String> {
        Ask::parse(body.as_bytes(), true)
    }

    #[test]
    fn what_it_cannot_do_is_refused_by_name() {
        for (extra, name) in [
            (r#""n":2"#, "\"n\""),
            (r#""logprobs":true"#, "logprobs"),
            (r#""response_format":{"type":"json_object"}"#, "response_format"),
            (r#""invented":1"#, "invented"),
            (r#""temperature":9"#, "temperature"),
            (r#""max_tokens":0"#, "max_tokens"),
            (r#""stop":["",""]"#, "stop"),
            (r#""seed":"x""#, "seed"),
        ] {
            let error =
                parse(&format!(r#"{{"messages":[{{"role":"user","content":"x"}}],{extra}}}"#)).unwrap_err();
            assert!(error.contains(name), "{extra}: {error}");
        }
    }

    #[test]
    fn what_asks_for_nothing_is_accepted() {
        let ask = parse(
            r#"{"model":"m","messages":[{"role":"user","content":"x"}],"n":1,"logprobs":false,"user":"u","stop":"a",
                "stream":true,"stream_options":{"include_usage":true},"max_completion_tokens":7,"temperature":null}"#,
        )
        .unwrap();
        assert!(
            ask.stream && ask.include_usage && ask.max_tokens == 7 && ask.temperature == DEFAULT_TEMPERATURE
        );
        assert_eq!(ask.stop, ["a"]);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_answered_without_a_panic(bytes: Vec<u8>, chat: bool) {
            let _ = Ask::parse(&bytes, chat);
        }
    }
}
