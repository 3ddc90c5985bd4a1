//! A loaded model: decoder, tokenizer and chat template under one name.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use crate::error::Error;
use crate::forward::Decoder;
use crate::template::Template;
use crate::tokenizer::Tokenizer;
use crate::weights::safetensors::{self, Parts};
use crate::weights::{Source, gguf::Gguf, reference};

/// Name of the built-in reference model.
pub const REFERENCE: &str = "serin-reference";

/// A model that can be added to an engine.
pub struct Model {
    name: String,
    description: String,
    pub(super) decoder: Decoder,
    pub(super) tokenizer: Tokenizer,
    template: Option<Template>,
}

/// A conversation to continue.
#[derive(Debug, Clone, Default)]
pub struct Chat {
    /// Message objects as in the chat completions API, oldest first.
    pub messages: Vec<Value>,
    /// The `tools` array of the request, if any.
    pub tools: Option<Value>,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model")
            .field("name", &self.name)
            .field("arch", &self.decoder.arch)
            .finish_non_exhaustive()
    }
}

impl Model {
    /// Opens a `.gguf` file, or a folder in the Hugging Face layout (`config.json`, `model.safetensors`,
    /// `tokenizer.json`). The model is named after the file or folder, without the ending.
    pub fn open(path: &Path) -> Result<Model, Error> {
        let stem = if path.is_dir() { path.file_name() } else { path.file_stem() };
        let name = stem.map_or_else(|| "model".to_owned(), |stem| stem.to_string_lossy().into_owned());
        if path.is_dir() {
            return Model::from_parts(name, safetensors::open(path)?);
        }
        let gguf = Gguf::read(Source::open(path)?)?;
        let arch = gguf.arch()?;
        let spelling = |key: &str| {
            let token = gguf.size(key).and_then(|id| gguf.array("tokenizer.ggml.tokens")?.get(id));
            match token {
                Some(crate::weights::gguf::Value::Text(text)) => text.clone(),
                _ => String::new(),
            }
        };
        let template = match gguf.text("tokenizer.chat_template") {
            Some(source) => Some(Template::new(
                source,
                &spelling("tokenizer.ggml.bos_token_id"),
                &spelling("tokenizer.ggml.eos_token_id"),
            )?),
            None => None,
        };
        let description = format!("{} (GGUF)", arch.name);
        let decoder = Decoder::new(arch, &gguf.weights)?;
        Ok(Model { name, description, decoder, tokenizer: Tokenizer::from_gguf(&gguf)?, template })
    }

    /// The built-in reference model: a calibration standard with constructed weights and known recall.
    pub fn reference() -> Result<Model, Error> {
        let files = reference::build()?;
        let parts = Parts {
            arch: crate::weights::arch::Arch::from_config(&files.config)?,
            weights: safetensors::read(Source::Owned(Arc::from(files.weights)))?,
            tokenizer: Some(files.tokenizer.to_owned()),
            template: Some(files.template.to_owned()),
            bos: None,
            eos: None,
        };
        let mut model = Model::from_parts(REFERENCE.to_owned(), parts)?;
        model.description =
            "calibration standard with constructed weights and known recall; not an assistant".into();
        Ok(model)
    }

    fn from_parts(name: String, parts: Parts) -> Result<Model, Error> {
        let missing = || Error::malformed("model folder", "tokenizer.json is missing");
        let tokenizer = Tokenizer::from_json(&parts.tokenizer.ok_or_else(missing)?)?;
        let (bos, eos) = (parts.bos.unwrap_or_default(), parts.eos.unwrap_or_default());
        let template = parts.template.map(|source| Template::new(&source, &bos, &eos)).transpose()?;
        let description = format!("{} (safetensors)", parts.arch.name);
        let decoder = Decoder::new(parts.arch, &parts.weights)?;
        Ok(Model { name, description, decoder, tokenizer, template })
    }

    /// The name requests ask for.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Gives the model another name, before it is added.
    pub fn renamed(mut self, name: &str) -> Model {
        self.name = name.to_owned();
        self
    }

    /// Longest sequence in tokens, prompt and answer together.
    pub fn context_length(&self) -> usize {
        self.decoder.arch.context
    }

    /// One line for a list of models.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// The prompt text of a conversation, up to where the answer begins.
    pub fn render_chat(&self, chat: &Chat) -> Result<String, Error> {
        let template = self.template.as_ref().ok_or_else(|| {
            Error::Template(format!("model {:?} has no chat template; send a plain prompt", self.name))
        })?;
        template.render(&chat.messages, chat.tools.as_ref(), super::now())
    }

    /// Token ids of a text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        self.tokenizer.encode(text)
    }
}
