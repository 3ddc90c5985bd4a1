//! A whole response body, streamed or not, as what the model said.

use super::fold::Fold;
use super::{Api, coding, sse};

/// The longest line or event of a stream that is looked into.
const EVENT_LIMIT: usize = 16 << 20;

/// What a response body says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Whether the body was a stream of events.
    pub streamed: bool,
    /// Whether all of it could be read. An unknown content encoding, another media type or a malformed chunk make it false.
    pub parsed: bool,
    /// Choices, usage, error and terminator.
    pub fold: Fold,
}

impl Answer {
    /// Reads a response body by its `content-type` and `content-encoding`. Never fails: see [`Answer::parsed`].
    pub fn read(
        api: Api,
        content_type: Option<&[u8]>,
        content_encoding: Option<&[u8]>,
        body: &[u8],
    ) -> Answer {
        let streamed = sse::is_stream(content_type);
        let mut answer = Answer { streamed, ..Answer::default() };
        let Some(body) = coding::decode(content_encoding, body) else { return answer };
        if streamed {
            answer.read_stream(api, &body);
        } else {
            answer.parsed = answer.fold.whole(api, &body);
        }
        answer
    }

    fn read_stream(&mut self, api: Api, body: &[u8]) {
        let mut parser = sse::Parser::new(EVENT_LIMIT);
        let fold = &mut self.fold;
        parser.push(body, &mut |event| fold.event(api, event.name, event.data));
        self.parsed = self.fold.malformed == 0 && parser.dropped() == 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_stream_and_a_whole_answer_say_the_same() {
        let stream = b"data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"a\"}}]}\n\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"b\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
        let whole = br#"{"choices":[{"index":0,"message":{"role":"assistant","content":"ab"},"finish_reason":"stop"}]}"#;
        let streamed = Answer::read(Api::Chat, Some(b"Text/Event-Stream; charset=utf-8"), None, stream);
        let plain = Answer::read(Api::Chat, Some(b"application/json"), Some(b"identity"), whole);
        assert_eq!(streamed.fold.choices, plain.fold.choices);
        assert!(streamed.parsed && streamed.fold.done && plain.parsed && !plain.streamed);
    }

    #[test]
    fn encoded_bodies_are_read_and_unknown_codings_left_alone() {
        let whole = br#"{"choices":[{"message":{"content":"ab"}}]}"#;
        let packed = zstd::bulk::compress(whole, 1).expect("compresses");
        let answer = Answer::read(Api::Chat, None, Some(b"ZSTD"), &packed);
        assert!(answer.parsed && answer.fold.choices[0].content == "ab");
        for (coding, body) in [("br", packed.as_slice()), ("gzip", b"\x1f\x8b"), ("zstd", b"x")] {
            let answer = Answer::read(Api::Chat, None, Some(coding.as_bytes()), body);
            assert!(!answer.parsed && answer.fold.choices.is_empty(), "{coding}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bodies_never_panic(body in proptest::collection::vec(any::<u8>(), 0..300), stream: bool) {
            let media: &[u8] = if stream { b"text/event-stream" } else { b"application/json" };
            for api in Api::ALL {
                let _ = Answer::read(api, Some(media), None, &body);
            }
        }
    }
}
