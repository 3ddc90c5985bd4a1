//! Counting tokens as a model's own tokenizer does, each line of a conversation once.

use std::collections::HashMap;

use tokenizers::Tokenizer;

use super::config;
use crate::recent::Recent;

/// The tokenizers that are configured, by model.
pub struct Tokenizers {
    models: HashMap<String, Tokenizer>,
    /// Counts that are remembered, of all models.
    lines: Recent<[u8; 16], u32>,
}

impl Tokenizers {
    /// Reads the files that are named.
    ///
    /// # Errors
    /// One line that says what is wrong with which file.
    pub fn read(config: &config::Config) -> Result<Tokenizers, String> {
        let mut models = HashMap::new();
        for model in config.model.iter().filter(|model| !model.tokenizer.as_os_str().is_empty()) {
            let path = model.tokenizer.display();
            let read = Tokenizer::from_file(&model.tokenizer).map_err(|error| {
                format!("[[passive.model]] tokenizer = \"{path}\" is no tokenizer.json: {error}")
            })?;
            models.insert(model.name.clone(), read);
        }
        Ok(Tokenizers { models, lines: Recent::new(config.lines) })
    }

    /// The tokens of a text; `None` for a model without a tokenizer. Counted by lines: where a token goes over the end of
    /// one it counts twice.
    pub fn count(&mut self, model: &str, text: &str) -> Option<usize> {
        let tokenizer = self.models.get(model)?;
        let mut sum = 0;
        for line in text.split_inclusive('\n') {
            let name = name(model, line);
            let known = self.lines.get(&name).copied();
            let count = match known {
                Some(count) => count,
                None => tokenizer.encode_fast(line, false).ok()?.len() as u32,
            };
            if known.is_none() {
                self.lines.insert(name, count);
            }
            sum += count as usize;
        }
        Some(sum)
    }
}

fn name(model: &str, line: &str) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(model.len() as u64).to_le_bytes()).update(model.as_bytes()).update(line.as_bytes());
    let mut name = [0; 16];
    name.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Splits at blanks; every word is one token.
    const WORDS: &str = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,"pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":null,"model":{"type":"WordLevel","vocab":{"a":0,"u":1},"unk_token":"u"}}"#;

    #[test]
    fn tokens_are_counted_by_the_models_own_tokenizer() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("tokenizer.json");
        std::fs::write(&file, WORDS).expect("writes");
        let model = |tokenizer| config::Model { name: "m".into(), tokenizer, context: 0 };
        let config = config::Config { model: vec![model(file.clone())], ..config::Config::default() };
        let mut tokenizers = Tokenizers::read(&config).expect("reads");
        for _ in 0..2 {
            assert_eq!(tokenizers.count("m", "a b c\nd\n\ne"), Some(5), "also when the lines are known");
        }
        assert_eq!(tokenizers.count("other", "a"), None);
        std::fs::write(&file, "{").expect("writes");
        let error = Tokenizers::read(&config).err().expect("is no tokenizer");
        assert!(error.starts_with("[[passive.model]] tokenizer = ") && !error.contains('\n'), "{error}");
    }
}
