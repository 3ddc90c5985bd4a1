//! A prompt that is one text, or a list of token ids: it has no messages to go by, so it is compared in blocks from its
//! beginning. What continues it begins with all of it, and with what the model has made of it.

use serde_json::value::RawValue;

use super::super::projection::{Key, Node, RULES};

/// A prompt, cut into blocks.
#[derive(Clone, Debug)]
pub struct Prompt {
    bytes: Vec<u8>,
    ids: bool,
    /// The chain behind each whole block; the first is behind none.
    blocks: Vec<Node>,
}

impl Prompt {
    /// Reads a prompt. `None` for several at once, which belong to no one conversation.
    pub fn read(key: &Key, raw: &RawValue) -> Option<Prompt> {
        if let Ok(text) = serde_json::from_str::<String>(raw.get()) {
            return Some(Prompt::of(key, text.into_bytes(), false));
        }
        let ids: Vec<u32> = serde_json::from_str(raw.get()).ok()?;
        Some(Prompt::of(key, ids.into_iter().flat_map(u32::to_le_bytes).collect(), true))
    }

    fn of(key: &Key, bytes: Vec<u8>, ids: bool) -> Prompt {
        let mut blocks = vec![key.hash(b"prompt2", &[&[u8::from(ids)]])];
        for block in bytes.chunks_exact(Self::block(ids)) {
            blocks.push(key.chain(&blocks[blocks.len() - 1], &key.hash(b"block2", &[block])));
        }
        Prompt { bytes, ids, blocks }
    }

    /// The prompt with an answer behind it; `None` for ids, of which the answer is not.
    pub fn and(&self, key: &Key, answer: &str) -> Option<Prompt> {
        (!self.ids).then(|| Prompt::of(key, [self.bytes.as_slice(), answer.as_bytes()].concat(), false))
    }

    pub fn is_ids(&self) -> bool {
        self.ids
    }

    /// The node behind all of it.
    pub fn node(&self, key: &Key) -> Node {
        self.node_at(key, self.blocks.len() - 1, self.tail_len()).unwrap_or_default()
    }

    /// The node behind so many blocks and some bytes more; `None` where there are not as many.
    pub fn node_at(&self, key: &Key, blocks: usize, tail: u32) -> Option<Node> {
        let start = blocks * Self::block(self.ids);
        let tail = self.bytes.get(start..start.checked_add(tail as usize)?)?;
        Some(key.hash(b"tail2", &[self.blocks.get(blocks)?, tail]))
    }

    /// The nodes behind its whole blocks, the first behind none.
    pub fn blocks(&self) -> &[Node] {
        &self.blocks
    }

    pub fn last_block(&self) -> Node {
        self.blocks[self.blocks.len() - 1]
    }

    /// Bytes behind the last whole block.
    pub fn tail_len(&self) -> u32 {
        (self.bytes.len() % Self::block(self.ids)) as u32
    }

    fn block(ids: bool) -> usize {
        if ids { 4 * RULES.ids_block } else { RULES.text_block }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_continues_a_prompt_passes_its_node() {
        let key = Key::of_tenant("default");
        for length in [1, 1023, 1024, 1025, 5000] {
            let short = Prompt::of(&key, vec![b'a'; length], false);
            let answered = short.and(&key, &"b".repeat(700)).expect("is text");
            let long = Prompt::of(&key, [answered.bytes.as_slice(), b"and more"].concat(), false);
            let blocks = answered.blocks.len() - 1;
            assert_eq!(long.blocks()[blocks], answered.last_block());
            assert_eq!(long.node_at(&key, blocks, answered.tail_len()), Some(answered.node(&key)));
            let other = Prompt::of(&key, vec![b'c'; length + 900], false);
            assert_ne!(other.node_at(&key, blocks, answered.tail_len()), Some(answered.node(&key)));
        }
        let ids = Prompt::read(&key, serde_json::from_str("[1,2,3]").expect("JSON")).expect("ids");
        assert!(ids.is_ids() && ids.tail_len() == 12 && ids.and(&key, "x").is_none());
        assert!(Prompt::read(&key, serde_json::from_str(r#"["a","b"]"#).expect("JSON")).is_none());
    }
}
