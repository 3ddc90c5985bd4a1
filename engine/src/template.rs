//! Chat templates: Jinja as the models' own files use it.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, ErrorKind, Value, context};

use crate::error::Error;

/// Instructions a template may spend on one rendering; a loop without end stops here.
const FUEL: u64 = 50_000_000;

/// A compiled chat template.
pub struct Template {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

/// The wall-clock reading that `strftime_now` shows, in seconds since 1970 (UTC).
#[derive(Debug, Clone, Copy)]
pub struct Now(pub u64);

impl Template {
    /// Compiles a template; `bos` and `eos` are what it may name `bos_token` and `eos_token`.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Template, Error> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(fail)?;
        environment.set_syntax(syntax);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", to_json);
        environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_template_owned("chat", source.to_owned()).map_err(fail)?;
        Ok(Template { environment, bos: bos.to_owned(), eos: eos.to_owned() })
    }

    /// Renders messages (each an object as in the chat completions API) up to where the assistant's answer begins.
    pub fn render(
        &self,
        messages: &[serde_json::Value],
        tools: Option<&serde_json::Value>,
        now: Now,
    ) -> Result<String, Error> {
        let strftime = Value::from_function(move |format: String| strftime(&format, now));
        let template = self.environment.get_template("chat").map_err(fail)?;
        let tools = tools.map_or(Value::from(()), |tools| Value::from(Serde(tools)));
        template
            .render(context! {
                messages => Value::from(Serde(messages)),
                tools,
                add_generation_prompt => true,
                bos_token => self.bos.as_str(),
                eos_token => self.eos.as_str(),
                strftime_now => strftime,
            })
            .map_err(fail)
    }
}

fn fail(error: minijinja::Error) -> Error {
    Error::Template(error.to_string())
}

/// JSON as Python's `json.dumps(ensure_ascii=False)` spaces it; unlike minijinja's own filter it escapes no HTML.
fn to_json(value: Value, options: Kwargs) -> Result<Value, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    let bad = |e: serde_json::Error| minijinja::Error::new(ErrorKind::BadSerialization, e.to_string());
    let value = serde_json::to_value(&value).map_err(bad)?;
    let mut out = String::new();
    write_json(&value, indent.map(|n| n.min(16)), 0, &mut out);
    Ok(Value::from_safe_string(out))
}

fn write_json(value: &serde_json::Value, indent: Option<usize>, depth: usize, out: &mut String) {
    use serde_json::Value as Json;
    let line = |out: &mut String, depth: usize| {
        if let Some(n) = indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', n * depth));
        }
    };
    let comma = if indent.is_some() { "," } else { ", " };
    match value {
        Json::Array(items) if !items.is_empty() => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i > 0 { comma } else { "" });
                line(out, depth + 1);
                write_json(item, indent, depth + 1, out);
            }
            line(out, depth);
            out.push(']');
        }
        Json::Object(fields) if !fields.is_empty() => {
            out.push('{');
            for (i, (key, item)) in fields.iter().enumerate() {
                out.push_str(if i > 0 { comma } else { "" });
                line(out, depth + 1);
                out.push_str(&Json::from(key.as_str()).to_string());
                out.push_str(": ");
                write_json(item, indent, depth + 1, out);
            }
            line(out, depth);
            out.push('}');
        }
        plain => out.push_str(&plain.to_string()),
    }
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// The directives chat templates use: %Y %y %m %d %B %b %A %a %H %M %S %%; any other stays as written.
fn strftime(format: &str, now: Now) -> String {
    let (days, seconds) = (now.0 / 86_400, now.0 % 86_400);
    let (year, month, day) = civil(days as i64);
    let (month_name, day_name) = (MONTHS[month - 1], DAYS[(days % 7) as usize]);
    let mut out = String::new();
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match rest.next() {
            Some('Y') => out.push_str(&format!("{year:04}")),
            Some('y') => out.push_str(&format!("{:02}", year % 100)),
            Some('m') => out.push_str(&format!("{month:02}")),
            Some('d') => out.push_str(&format!("{day:02}")),
            Some('B') => out.push_str(month_name),
            Some('b') => out.push_str(&month_name[..3]),
            Some('A') => out.push_str(day_name),
            Some('a') => out.push_str(&day_name[..3]),
            Some('H') => out.push_str(&format!("{:02}", seconds / 3600)),
            Some('M') => out.push_str(&format!("{:02}", seconds / 60 % 60)),
            Some('S') => out.push_str(&format!("{:02}", seconds % 60)),
            Some('%') => out.push('%'),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}

/// Year, month and day of a day number since 1970 (Hinnant's `civil_from_days`).
fn civil(days: i64) -> (i64, usize, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let of_era = z.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month as usize, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn render(
        source: &str,
        messages: serde_json::Value,
        tools: Option<serde_json::Value>,
    ) -> Result<String, Error> {
        let messages = messages.as_array().cloned().unwrap_or_default();
        Template::new(source, "<s>", "</s>")?.render(&messages, tools.as_ref(), Now(1_798_761_599))
    }

    #[test]
    fn blocks_are_trimmed_and_python_methods_work() {
        let source = "{{ bos_token }}\n  {% for m in messages %}\n{{ m.content.strip() | upper }}\n  {% endfor %}\nend";
        let text = render(source, json!([{"content": " hi "}, {"content": "you"}]), None).unwrap();
        assert_eq!(text, "<s>\nHI\nYOU\nend");
    }

    #[test]
    fn tools_are_plain_json() {
        let tools = json!([{"name": "a<b>", "n": [1, 2]}]);
        let text = render("{{ tools | tojson }}", json!([]), Some(tools)).unwrap();
        assert_eq!(text, r#"[{"n": [1, 2], "name": "a<b>"}]"#);
        let text = render("{{ tools | tojson(indent=2) }}", json!([]), Some(json!([{"a": []}]))).unwrap();
        assert_eq!(text, "[\n  {\n    \"a\": []\n  }\n]");
    }

    #[test]
    fn a_refusal_of_the_template_is_an_error() {
        let error = render("{{ raise_exception('roles must alternate') }}", json!([]), None).unwrap_err();
        assert!(error.to_string().contains("roles must alternate"), "{error}");
    }

    #[test]
    fn dates_are_civil() {
        let text = render("{{ strftime_now('%d %b %Y %H:%M:%S %A') }}", json!([]), None).unwrap();
        assert_eq!(text, "31 Dec 2026 23:59:59 Thursday");
        assert_eq!(civil(19_782), (2024, 2, 29));
    }

    #[test]
    fn an_endless_template_ends() {
        let source = "{% for a in range(99999) %}{% for b in range(99999) %}{{ b }}{% endfor %}{% endfor %}";
        assert!(render(source, json!([]), None).is_err());
    }
}
