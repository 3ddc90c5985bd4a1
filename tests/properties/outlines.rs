//! Where the parts of a request lie, beside what a whole parser says.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use serde::Deserializer;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;
use serin::openai::outline::{self, Element, Field, Name, Outline, SMALL};

use super::pieces;

/// The outline of any bytes is in order and inside of them; that of a JSON object has the fields and elements that a parser
/// finds; and a name stands for one value only.
pub fn outline(input: &[u8]) {
    let mut names = Names::default();
    for body in pieces::parts(input) {
        let body = pieces::stretch(body);
        let outline = Outline::of(&body);
        in_order(&body, &outline);
        if let Some(pairs) = std::str::from_utf8(&body).ok().and_then(object) {
            agrees(&body, &outline, &pairs);
            names.learn(&body, &outline, &pairs);
        }
    }
}

fn in_order(body: &[u8], outline: &Outline) {
    let mut at = 0;
    for field in &outline.fields {
        assert!(at <= field.key && field.key < field.value.start && field.value.end <= body.len());
        assert!(field.value.len() >= SMALL);
        let mut inner = field.value.start;
        for Element { range, name } in &field.elements {
            assert!(range.start == inner && inner < range.end && range.end < field.value.end);
            assert_eq!(*name, outline::name(&body[range.clone()]));
            inner = range.end;
        }
        at = field.value.end;
    }
    let mut at = 0;
    for (range, _) in outline.parts() {
        assert!(at <= range.start && range.start < range.end && range.end <= body.len());
        at = range.end;
    }
}

/// A key and its value, and where that lies.
type Pair<'a> = (Cow<'a, str>, &'a RawValue, Range<usize>);

/// The pairs of a JSON object, in order and however often a key comes.
fn object(body: &str) -> Option<Vec<Pair<'_>>> {
    struct Pairs;
    impl<'de> Visitor<'de> for Pairs {
        type Value = Vec<(Key<'de>, &'de RawValue)>;

        fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
            out.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut pairs = Vec::new();
            while let Some(pair) = map.next_entry()? {
                pairs.push(pair);
            }
            Ok(pairs)
        }
    }
    #[derive(serde::Deserialize)]
    struct Key<'a>(#[serde(borrow)] Cow<'a, str>);
    let mut parser = serde_json::Deserializer::from_str(body);
    let pairs = parser.deserialize_map(Pairs).ok()?;
    parser.end().ok()?;
    Some(pairs.into_iter().map(|(key, value)| (key.0, value, place(body, value))).collect())
}

fn place(body: &str, value: &RawValue) -> Range<usize> {
    let start = value.get().as_ptr().addr() - body.as_ptr().addr();
    start..start + value.get().len()
}

fn items(value: &RawValue) -> Vec<&RawValue> {
    serde_json::from_str(value.get()).unwrap_or_default()
}

fn agrees(body: &[u8], outline: &Outline, pairs: &[Pair<'_>]) {
    let large: Vec<&Pair<'_>> = pairs.iter().filter(|(.., place)| place.len() >= SMALL).collect();
    assert_eq!(outline.fields.len(), large.len());
    for (field, (key, value, place)) in outline.fields.iter().zip(large) {
        assert_eq!(field.value, *place);
        let mut text =
            serde_json::Deserializer::from_slice(&body[field.key..place.start]).into_iter::<String>();
        assert_eq!(text.next().and_then(Result::ok).as_deref(), Some(key.as_ref()));
        assert_eq!(body[field.key + text.byte_offset()..place.start].trim_ascii(), b":");
        has_elements(body, field, value);
    }
}

/// Each element of an outline ends where one of the list does, and no object or list is cut or passed over.
fn has_elements(body: &[u8], field: &Field, value: &RawValue) {
    let whole = std::str::from_utf8(body).expect("was parsed");
    let mut ends = field.elements.iter().map(|element| element.range.end).peekable();
    if ends.peek().is_none() {
        return;
    }
    for item in items(value) {
        let end = place(whole, item).end;
        let found = ends.next_if_eq(&end).is_some();
        assert!(found || !item.get().starts_with(['{', '[']), "{} is no element", item.get());
    }
    assert_eq!(ends.next(), None);
}

/// Which value has which name.
#[derive(Default)]
struct Names(HashMap<Name, String>);

impl Names {
    fn learn(&mut self, body: &[u8], outline: &Outline, pairs: &[Pair<'_>]) {
        let whole = std::str::from_utf8(body).expect("was parsed");
        for (_, value, place_of) in pairs {
            self.one(outline, value, place_of);
            for item in items(value) {
                self.one(outline, item, &place(whole, item));
            }
        }
    }

    fn one(&mut self, outline: &Outline, value: &RawValue, place: &Range<usize>) {
        let Some(name) = outline.name_of(place) else { return };
        let known = self.0.entry(name).or_insert_with(|| value.get().to_owned());
        assert_eq!(known, value.get(), "two values have one name");
    }
}
