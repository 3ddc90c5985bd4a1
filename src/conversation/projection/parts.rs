//! The content of a message in one form, whether it is a string, a list of parts, or nothing.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::rules::RULES;
use super::text;

/// What a message says.
#[derive(Clone, Debug, Default)]
pub struct Content {
    /// Its texts, joined and normalised; other parts stand in it as marks.
    pub text: String,
    pub calls: Vec<Call>,
    /// The texts of tools' results.
    pub results: Vec<String>,
}

/// A tool call that is a part of a message.
#[derive(Clone, Debug)]
pub struct Call {
    pub id: String,
    pub name: String,
    pub arguments: String,
}

#[derive(Deserialize)]
struct Part<'a> {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    text: Option<String>,
    #[serde(borrow, default)]
    image_url: Option<&'a RawValue>,
    #[serde(borrow, default)]
    source: Option<&'a RawValue>,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(borrow, default)]
    input: Option<&'a RawValue>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
}

/// An image: inline, or by its address.
#[derive(Deserialize)]
struct Source {
    #[serde(default)]
    url: Option<String>,
    #[serde(default)]
    media_type: Option<String>,
    #[serde(default)]
    data: Option<String>,
}

/// Reads the content of a message. `strip`: without the tags that harnesses add.
pub fn read(raw: Option<&RawValue>, strip: bool) -> Content {
    let raw = raw.map_or("null", RawValue::get);
    let mut content = Content::default();
    if let Ok(text) = serde_json::from_str::<Option<String>>(raw) {
        content.text = text.unwrap_or_default();
    } else if let Ok(parts) = serde_json::from_str::<Vec<&RawValue>>(raw) {
        parts.into_iter().for_each(|part| content.part(part, strip));
    } else {
        raw.clone_into(&mut content.text);
    }
    content.text = clean(&content.text, strip);
    content
}

fn clean(text: &str, strip: bool) -> String {
    if strip { text::normalise(&text::without_harness_tags(text)) } else { text::normalise(text) }
}

impl Content {
    fn part(&mut self, raw: &RawValue, strip: bool) {
        let Ok(part) = serde_json::from_str::<Part<'_>>(raw.get()) else {
            return self.text.push_str(raw.get());
        };
        let kind = part.kind.as_deref().unwrap_or("text");
        let is = |kinds: &[String]| kinds.iter().any(|known| known == kind);
        if is(&RULES.dropped_parts) {
            return;
        }
        match (kind, part.text) {
            (_, Some(text)) if is(&RULES.text_parts) => self.text.push_str(&text),
            ("tool_use" | "server_tool_use", _) => self.calls.push(Call {
                id: part.id.unwrap_or_default(),
                name: part.name.unwrap_or_default(),
                arguments: part.input.map_or_else(String::new, |input| input.get().to_owned()),
            }),
            ("tool_result", _) => self.results.push(read(part.content, strip).text),
            _ => {
                let image = part.image_url.or(part.source).and_then(mark);
                let mark =
                    image.unwrap_or_else(|| format!("part {}", blake3::hash(raw.get().as_bytes()).to_hex()));
                self.text.push_str(&format!("\u{0}{mark}\u{0}"));
            }
        }
    }
}

/// An image by its bytes, where it is inline in any of the ways, else by its address.
fn mark(raw: &RawValue) -> Option<String> {
    let source = match serde_json::from_str::<String>(raw.get()) {
        Ok(url) => Source { url: Some(url), media_type: None, data: None },
        Err(_) => serde_json::from_str::<Source>(raw.get()).ok()?,
    };
    let url = source.url.as_deref().unwrap_or_default();
    let inline = url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
    let (media, data) = match (inline, &source.data) {
        (Some((media, data)), _) => (media, data),
        (None, Some(data)) => (source.media_type.as_deref().unwrap_or_default(), data.as_str()),
        (None, None) => return Some(format!("image {}", blake3::hash(url.as_bytes()).to_hex())),
    };
    // The same bytes have one text in base64, but for line breaks and what pads the end.
    let bare: String =
        data.chars().filter(|character| !character.is_whitespace() && *character != '=').collect();
    Some(format!("image {media} {}", blake3::hash(bare.as_bytes()).to_hex()))
}
