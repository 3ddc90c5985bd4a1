//! What each interface's answers add to a [`Fold`].

use super::delta::Chunk;
use super::{Api, Fold, anthropic, generate, responses};

impl Fold {
    /// Takes the data of one event, and its name: an event named `error` is an error whatever it holds.
    pub fn event(&mut self, api: Api, name: &[u8], data: &[u8]) {
        if data.trim_ascii() == b"[DONE]" {
            self.done = true;
            return;
        }
        let known = match api {
            Api::Messages => return anthropic::event(self, data),
            Api::Responses => return responses::event(self, data),
            _ if name == b"error" => {
                self.error.get_or_insert_with(|| String::from_utf8_lossy(data).into_owned());
                true
            }
            Api::Generate => generate::chunk(self, data),
            Api::Chat | Api::Completions => self.chat(data),
        };
        self.malformed += u64::from(!known);
    }

    /// Takes a whole answer. Returns whether it was one.
    pub fn whole(&mut self, api: Api, body: &[u8]) -> bool {
        match api {
            Api::Messages => anthropic::whole(self, body),
            Api::Responses => responses::whole(self, body),
            Api::Generate => generate::chunk(self, body),
            Api::Chat | Api::Completions => {
                let Some(chunk) = Chunk::parse(body) else { return false };
                self.chunk(&chunk);
                chunk.choices.is_some() || chunk.error.is_some()
            }
        }
    }
}
