//! How an exchange really ended.

use crate::journal::{End, Exchange};
use crate::openai::{Answer, Api};

/// A stream that HTTP calls complete may have failed all the same: an error event in it, or no terminator, as each
/// interface's streams have one. Where the record does not hold all of it nothing can be said.
pub fn judge(exchange: &Exchange, answer: &Answer) -> End {
    let end = exchange.end();
    let turn = Api::of_path(exchange.path()).is_some();
    let judged = turn && end == End::Complete && exchange.status == 200 && answer.streamed && answer.parsed;
    match judged && (answer.fold.error.is_some() || !answer.fold.done) {
        true => End::StreamError,
        false => end,
    }
}

#[cfg(test)]
mod tests {
    use super::super::answer_of;
    use super::*;
    use crate::journal::{Capture, Header};

    fn exchange(path: &str, media: &'static str, body: &'static str) -> Exchange {
        Exchange {
            method: "POST".into(),
            target: path.into(),
            status: 200,
            response_headers: vec![Header { name: "Content-Type".into(), value: media.into() }],
            response_body: body.into(),
            ..Exchange::default()
        }
    }

    const CUT: &str =
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hey\"},\"finish_reason\":\"stop\"}]}\n\n";
    const WHOLE: &str =
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hey\"}}]}\n\ndata: [DONE]\n\n";
    const FAILED: &str = "data: {\"error\":{\"message\":\"out of memory\"}}\n\ndata: [DONE]\n\n";

    #[test]
    fn the_end_of_a_stream_is_judged_by_what_it_says() {
        let end = |path, body| {
            let exchange = exchange(path, "text/event-stream", body);
            judge(&exchange, &answer_of(&exchange))
        };
        assert_eq!(end("/v1/chat/completions?x=1", WHOLE), End::Complete);
        assert_eq!(end("/v1/chat/completions", CUT), End::StreamError);
        assert_eq!(end("/v1/completions", FAILED), End::StreamError);
        let stop = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
        assert_eq!((end("/v1/messages", stop), end("/v1/messages", "")), (End::Complete, End::StreamError));
        let overloaded =
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n";
        assert_eq!(end("/v1/messages", overloaded), End::StreamError);
        let done = "data: {\"type\":\"response.completed\",\"response\":{\"output\":[]}}\n\n";
        let failed = "data: {\"type\":\"response.failed\",\"response\":{\"output\":[],\"error\":{\"code\":\"x\"}}}\n\n";
        assert_eq!(
            (end("/v1/responses", done), end("/v1/responses", failed)),
            (End::Complete, End::StreamError)
        );
        assert_eq!(end("/generate", "data: {\"text\":\"a\"}\n\ndata: [DONE]\n\n"), End::Complete);
        assert_eq!(end("/v1/events", CUT), End::Complete, "what is no turn is not judged");
    }

    #[test]
    fn what_is_known_to_have_failed_stays_so_and_what_is_cut_is_not_judged() {
        let mut cut = exchange("/v1/chat/completions", "text/event-stream", CUT);
        cut.set_response_capture(Capture::Truncated);
        assert_eq!(judge(&cut, &answer_of(&cut)), End::Complete);
        cut.set_response_capture(Capture::Whole);
        cut.set_end(End::ClientCancelled);
        assert_eq!(judge(&cut, &answer_of(&cut)), End::ClientCancelled);
        let whole = exchange("/v1/chat/completions", "application/json", "{}");
        assert_eq!(judge(&whole, &answer_of(&whole)), End::Complete);
    }
}
