//! The log's lines: for people, or as JSON for machines, handed to the thread that writes them.

use std::fmt;
use std::io::{self, IsTerminal, Write};

use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt as lines, reload};

use crate::clock;
use crate::config::LogFormat;
use crate::log::Log;

/// Sends everything that is traced to `log`. Returns what changes the level later.
pub fn install(
    log: Log,
    level: LevelFilter,
    format: LogFormat,
) -> impl Fn(LevelFilter) + Send + Sync + 'static {
    let (filter, handle) = reload::Layer::new(level);
    let layer = lines::layer().with_writer(Place(log));
    let registry = tracing_subscriber::registry().with(filter);
    match format {
        LogFormat::Text => {
            registry.with(layer.with_ansi(io::stderr().is_terminal()).with_target(false)).init();
        }
        LogFormat::Json => registry.with(layer.event_format(Json)).init(),
    }
    move |level| {
        let _ = handle.reload(level);
    }
}

/// Where tracing writes to: each event comes in one piece.
struct Place(Log);

struct Piece<'a>(&'a Log);

impl<'a> MakeWriter<'a> for Place {
    type Writer = Piece<'a>;

    fn make_writer(&'a self) -> Piece<'a> {
        Piece(&self.0)
    }
}

impl Write for Piece<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.error(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One object a line: time, level, message, and the event's own fields beside them.
struct Json;

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let time = clock::rfc3339(clock::unix_nanos());
        let level = event.metadata().level().as_str().to_ascii_lowercase();
        let mut fields = Fields(vec![("time", time.into()), ("level", level.into())]);
        event.record(&mut fields);
        for (at, (name, value)) in fields.0.iter().enumerate() {
            let before = if at == 0 { "{" } else { "," };
            write!(out, "{before}{}:{value}", Value::from(*name))?;
        }
        writeln!(out, "}}")
    }
}

/// The fields of one line, in order; an event's message comes first of its own.
struct Fields(Vec<(&'static str, Value)>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push((field.name(), format!("{value:?}").into()));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.push((field.name(), value.into()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.push((field.name(), value.into()));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.push((field.name(), value.into()));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.push((field.name(), value.into()));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0.push((field.name(), value.into()));
    }
}
