//! Turns a recorded exchange into what was asked and answered, and says how it really ended.

use crate::conversation::reading;
use crate::journal::{Capture, End, Exchange};
use crate::openai::{Answer, CHAT_PATH, COMPLETIONS_PATH, ChatRequest, Choice, Usage};

/// An exchange, understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assembled {
    /// The model as the client asked for it; empty where the request was not readable.
    pub asked_model: String,
    /// The model as the response names it.
    pub answered_model: Option<String>,
    pub streaming: bool,
    /// Messages in the request.
    pub messages: usize,
    /// Whether request and response could both be read.
    pub parsed: bool,
    pub answer: Answer,
    /// How the exchange ended, judged by what the response says as well.
    pub end: End,
}

impl Assembled {
    /// The first choice.
    pub fn message(&self) -> Option<&Choice> {
        self.answer.fold.choices.first()
    }

    pub fn usage(&self) -> Option<Usage> {
        self.answer.fold.usage
    }

    pub fn finish_reason(&self) -> Option<&str> {
        self.message()?.finish_reason.as_deref()
    }
}

/// Reads an exchange. Never fails: what cannot be read is raw in the record, and `parsed` is false.
pub fn assemble(exchange: &Exchange) -> Assembled {
    let request = match exchange.request_capture() {
        Capture::Whole => ChatRequest::parse(&exchange.request_body),
        Capture::Truncated | Capture::None => None,
    };
    let answer = reading::answer_of(exchange);
    Assembled {
        asked_model: request.as_ref().map_or_else(String::new, |request| request.model.clone().into_owned()),
        answered_model: answer.fold.model.clone(),
        streaming: request.as_ref().is_some_and(ChatRequest::is_streaming),
        messages: request.as_ref().map_or(0, |request| request.messages.len()),
        parsed: request.is_some() && answer.parsed,
        end: refine(exchange, &answer),
        answer,
    }
}

/// A stream that HTTP calls complete may have failed all the same: an error event in it, or no terminator, on a path
/// whose streams always have one. Where the record does not hold all of it nothing can be said.
fn refine(exchange: &Exchange, answer: &Answer) -> End {
    let end = exchange.end();
    let judged = end == End::Complete && exchange.status == 200 && answer.streamed && answer.parsed;
    let terminated = answer.fold.done || !matches!(exchange.path(), CHAT_PATH | COMPLETIONS_PATH);
    match judged && (answer.fold.error.is_some() || !terminated) {
        true => End::StreamError,
        false => end,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Header;
    use bytes::Bytes;

    fn exchange(path: &str, media: &'static str, body: &'static str) -> Exchange {
        Exchange {
            method: "POST".into(),
            target: path.into(),
            request_body: Bytes::from_static(
                br#"{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}"#,
            ),
            status: 200,
            response_headers: vec![Header { name: "Content-Type".into(), value: media.into() }],
            response_body: body.into(),
            ..Exchange::default()
        }
    }

    const WORDS: &str = "data: {\"model\":\"served\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hey\"},\"finish_reason\":\"stop\"}]}\n\n";
    const WHOLE: &str =
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hey\"}}]}\n\ndata: [DONE]\n\n";
    const FAILED: &str = "data: {\"error\":{\"message\":\"out of memory\"}}\n\ndata: [DONE]\n\n";

    #[test]
    fn the_end_of_a_stream_is_judged_by_what_it_says() {
        let end = |path, media, body| assemble(&exchange(path, media, body)).end;
        assert_eq!(end("/v1/chat/completions?x=1", "text/event-stream", WHOLE), End::Complete);
        assert_eq!(end("/v1/chat/completions", "text/event-stream", WORDS), End::StreamError);
        assert_eq!(end("/v1/completions", "text/event-stream", FAILED), End::StreamError);
        assert_eq!(end("/v1/messages", "text/event-stream", WORDS), End::Complete);
        assert_eq!(end("/v1/chat/completions", "application/json", "{}"), End::Complete);
    }

    #[test]
    fn what_is_known_to_have_failed_stays_so_and_what_is_cut_is_not_judged() {
        let mut cut = exchange("/v1/chat/completions", "text/event-stream", WORDS);
        cut.set_response_capture(Capture::Truncated);
        let seen = assemble(&cut);
        assert_eq!((seen.end, seen.parsed), (End::Complete, false));
        cut.set_response_capture(Capture::Whole);
        cut.set_end(End::ClientCancelled);
        assert_eq!(assemble(&cut).end, End::ClientCancelled);
    }

    #[test]
    fn request_and_answer_are_told() {
        let seen = assemble(&exchange("/v1/chat/completions", "text/event-stream", WORDS));
        assert_eq!((seen.asked_model.as_str(), seen.answered_model.as_deref()), ("m", Some("served")));
        assert_eq!((seen.messages, seen.streaming, seen.parsed), (1, true, true));
        assert_eq!(
            (seen.message().map(|message| message.content.as_str()), seen.finish_reason()),
            (Some("hey"), Some("stop"))
        );
    }
}
