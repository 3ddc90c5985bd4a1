//! Probes: what is said to the model and what is expected back.

mod recipe;
mod turn_recall;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::fidelity::degeneration::Scripts;
use crate::fidelity::judge::Expectation;
use crate::fidelity::secret::Secret;

pub use recipe::{Kind, REFERENCE_MODEL, Recipe, Slot};

/// One probe, ready to be sent.
#[derive(Debug, Clone)]
pub struct Probe {
    pub id: String,
    pub kind: Kind,
    pub secret: Secret,
    pub decoys: Vec<Secret>,
    /// Words in all messages.
    pub words: usize,
    pub stream: bool,
    model: String,
    temperature: f64,
    messages: Vec<Value>,
    scripts: Scripts,
}

/// How many wordings a kind has.
pub fn wordings() -> usize {
    turn_recall::WORDINGS.len()
}

impl Probe {
    /// Builds the probe for `slot`; the same slot and recipe give the same probe.
    pub fn build(slot: &Slot, recipe: Recipe<'_>) -> Self {
        let (secret, messages) = match slot.kind {
            Kind::TurnRecall => turn_recall::build(slot, recipe),
        };
        let texts: Vec<&str> = messages.iter().filter_map(|message| message["content"].as_str()).collect();
        Self {
            id: recipe.id.to_owned(),
            kind: slot.kind,
            secret,
            decoys: Vec::new(),
            words: texts.iter().map(|text| text.split_whitespace().count()).sum(),
            stream: slot.stream,
            model: recipe.model.to_owned(),
            temperature: slot.temperature,
            scripts: Scripts::of(&texts.concat()),
            messages,
        }
    }

    /// The request body, with `further` messages after the probe's own.
    pub fn body(&self, max_tokens: u32, further: &[Value]) -> Bytes {
        let messages: Vec<&Value> = self.messages.iter().chain(further).collect();
        let mut body = json!({
            "model": self.model,
            "messages": messages,
            "tools": [write_tool()],
            "temperature": self.temperature,
            "max_tokens": max_tokens,
            "stream": self.stream,
        });
        if self.stream {
            body["stream_options"] = json!({"include_usage": true});
        }
        Bytes::from(body.to_string())
    }

    /// What the judge needs to know.
    pub fn expectation(&self) -> Expectation<'_> {
        Expectation {
            probe_id: &self.id,
            secret: &self.secret,
            decoys: &self.decoys,
            scripts: self.scripts,
            continuation: false,
        }
    }
}

/// A tool nobody needs: agents send tools with every request, and templates take another path then.
fn write_tool() -> Value {
    json!({
        "type": "function",
        "function": {
            "name": "write",
            "description": "Write a text to a file",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
                "required": ["path", "content"],
            },
        },
    })
}
