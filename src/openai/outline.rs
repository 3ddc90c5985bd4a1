//! Where the parts of a request's body lie, found once: what a client sends again with every turn is recognised by its
//! name, and looked at no further.
//!
//! The cuts are lexical: fields of an object, elements of the lists in them. Nothing is decoded.

use std::ops::Range;

use super::field;

/// The beginning of the BLAKE3 hash of a part's bytes.
pub type Name = [u8; 16];

/// The parts of one body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outline {
    pub fields: Vec<Field>,
}

/// A field of some length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Where its key begins.
    pub key: usize,
    pub value: Range<usize>,
    /// Of the key and the value; of a list it comes from the names of what is in it.
    pub name: Name,
    /// Of a list: its elements up to the closing bracket, without holes, each with what separates it from the one before.
    pub elements: Vec<Element>,
}

/// One element of a list, or several small ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    pub range: Range<usize>,
    pub name: Name,
}

/// A field below this is not worth a name.
pub const SMALL: usize = 256;
/// An element of a list that is an object stands by itself; others are taken together until they have this many bytes.
const SCALARS: usize = 2048;
/// A list with more elements is no history but something built to cost: it is taken as one value.
const MOST_ELEMENTS: usize = 1 << 16;

impl Outline {
    /// The parts of a body; none where it is no JSON object.
    pub fn of(body: &[u8]) -> Outline {
        Outline { fields: fields(body).unwrap_or_default() }
    }

    /// The name of the value that takes these bytes, where it is a field's or the element of a list.
    pub fn name_of(&self, value: &Range<usize>) -> Option<Name> {
        let field = self.fields.iter().find(|field| field.value.end >= value.end)?;
        if field.value == *value {
            return Some(field.name);
        }
        let found = field.elements.binary_search_by_key(&value.end, |element| element.range.end).ok()?;
        Some(field.elements[found].name)
    }

    /// All parts that have a name, in order: elements, and with its key a field that is no list.
    pub fn parts(&self) -> impl Iterator<Item = (Range<usize>, Name)> {
        self.fields.iter().flat_map(|field| {
            let whole = field.elements.is_empty().then_some((field.key..field.value.end, field.name));
            whole
                .into_iter()
                .chain(field.elements.iter().map(|element| (element.range.clone(), element.name)))
        })
    }
}

/// The name of these bytes.
pub fn name(bytes: &[u8]) -> Name {
    let mut name = [0; 16];
    name.copy_from_slice(&blake3::hash(bytes).as_bytes()[..16]);
    name
}

/// The name of a list, by its elements and what stands behind the last of them.
fn name_of_list(elements: &[Element], behind: &[u8]) -> Name {
    let names: Vec<u8> =
        elements.iter().map(|element| element.name).chain([name(behind)]).flatten().collect();
    name(&names)
}

fn fields(body: &[u8]) -> Option<Vec<Field>> {
    let at = |rest: &[u8]| body.len() - rest.len();
    let mut rest = body.trim_ascii_start().strip_prefix(b"{")?.trim_ascii_start();
    let mut fields = Vec::new();
    while rest.first() != Some(&b'}') {
        let key = at(rest);
        let (_, after) = field::string(rest)?;
        let begins = after.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
        let after = field::skip(begins)?;
        let value = at(begins)..at(after);
        if value.len() >= SMALL {
            let elements = elements(body, &value).unwrap_or_default();
            let name = match elements.last() {
                // The key belongs to what is named: whether its value is a secret depends on it.
                None => name(&body[key..value.end]),
                Some(last) => name_of_list(&elements, &body[last.range.end..value.end]),
            };
            fields.push(Field { key, value, name, elements });
        }
        rest = after.trim_ascii_start();
        match rest.first()? {
            b',' => rest = rest[1..].trim_ascii_start(),
            b'}' => {}
            _ => return None,
        }
    }
    Some(fields)
}

fn elements(body: &[u8], list: &Range<usize>) -> Option<Vec<Element>> {
    let at = |rest: &[u8]| list.end - rest.len();
    let mut rest = body[list.clone()].strip_prefix(b"[")?.trim_ascii_start();
    let (mut elements, mut begins) = (Vec::new(), list.start);
    while rest.first() != Some(&b']') {
        let scalar = !matches!(rest.first()?, b'{' | b'[');
        rest = field::skip(rest)?;
        let range = begins..at(rest);
        if !scalar || range.len() >= SCALARS {
            begins = range.end;
            elements.push(Element { name: name(&body[range.clone()]), range });
        }
        if elements.len() > MOST_ELEMENTS {
            return None;
        }
        rest = rest.trim_ascii_start();
        match rest.first()? {
            b',' => rest = rest[1..].trim_ascii_start(),
            b']' => {}
            _ => return None,
        }
    }
    Some(elements)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_element_has_its_name_wherever_it_stands() {
        let message = |text: &str| format!(r#"{{"role":"user","content":"{}"}}"#, text.repeat(40));
        let (a, b) = (message("first one"), message("second"));
        let body = format!(r#"{{"model":"m","messages": [ {a}, {b} ],"system":"{}"}}"#, "s".repeat(300));
        let outline = Outline::of(body.as_bytes());
        let end = |part: &str| body.find(part).map(|at| at + part.len()).expect("is there");
        let longer = format!(r#"{{"messages": [ {a}, {b}, {a} ]}}"#);
        let grown = Outline::of(longer.as_bytes());
        let at = |part: &str| end(part) - part.len()..end(part);
        assert_eq!(outline.name_of(&at(&b)), Some(grown.fields[0].elements[1].name));
        assert_eq!(outline.name_of(&(0..end(&a) - 1)), None);
        let system = at(&format!("\"{}\"", "s".repeat(300)));
        assert_eq!(outline.name_of(&system), Some(outline.fields[1].name));
        let names: Vec<_> = [&outline, &grown].map(|of| of.name_of(&of.fields[0].value)).into();
        assert!(names[0].is_some() && names[1].is_some() && names[0] != names[1]);
        let parts: Vec<&str> = outline.parts().map(|(range, _)| &body[range]).collect();
        assert_eq!(parts.len(), 3);
        assert!(
            parts[0].starts_with("[ {") && parts[1].starts_with(", {") && parts[2].starts_with("\"system\"")
        );
    }

    #[test]
    fn lists_that_differ_behind_their_last_element_have_two_names() {
        let text = "t".repeat(3000);
        let name = |end: &str| {
            let body = format!(r#"{{"prompt":["{text}",{end}]}}"#);
            let outline = Outline::of(body.as_bytes());
            assert_eq!(outline.fields[0].elements.len(), 1);
            outline.name_of(&outline.fields[0].value)
        };
        assert!(name("1").is_some() && name("1") == name("1") && name("1") != name("2"));
    }

    #[test]
    fn blanks_behind_a_number_are_not_its_own() {
        let body = format!(r#"{{"a": {} , "b": [ {} ] }}"#, "1".repeat(300), "2".repeat(300));
        let outline = Outline::of(body.as_bytes());
        assert_eq!(body[outline.fields[0].value.clone()], "1".repeat(300));
        assert!(body[outline.fields[1].value.clone()].ends_with("2 ]"));
    }

    #[test]
    fn a_list_built_to_cost_is_one_value() {
        let body = format!(r#"{{"messages":[{}{{}}]}}"#, "{},".repeat(MOST_ELEMENTS + 1));
        let outline = Outline::of(body.as_bytes());
        assert!(outline.fields.len() == 1 && outline.fields[0].elements.is_empty());
        assert_eq!(outline.parts().count(), 1);
    }

    proptest! {
        #[test]
        fn parts_are_in_order_and_inside(text in r#"[ ]{0,3}\{("[a\\]{0,3}"|[\[\]{}:, 1]|"[a-z]{300}"){0,25}[} ]{0,3}"#) {
            let mut at = 0;
            for (range, _) in Outline::of(text.as_bytes()).parts() {
                prop_assert!(range.start >= at && range.end > range.start && range.end <= text.len());
                at = range.end;
            }
        }

        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Outline::of(&bytes);
        }
    }
}
