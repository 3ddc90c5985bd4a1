//! Who may do what on the admin side: tokens with names and scopes.

use std::path::Path;

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;

use crate::ids;

/// What a token may do: each scope includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Metrics and states.
    Metrics,
    /// What was recorded, without what was said.
    Meta,
    /// What was said.
    Content,
    /// Copies of it for others.
    Export,
    /// Erasing, holding, and reading the configuration again.
    Admin,
}

impl Scope {
    const ALL: [(Scope, &'static str); 5] = [
        (Scope::Metrics, "metrics"),
        (Scope::Meta, "meta"),
        (Scope::Content, "content"),
        (Scope::Export, "export"),
        (Scope::Admin, "admin"),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    fn of_name(name: &str) -> Option<Scope> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(scope, _)| *scope)
    }
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reader {
    pub name: String,
    pub scope: Scope,
}

/// Who may read the admin side. Without a token that is everybody who reaches it, which is over loopback.
#[derive(Clone, Debug, Default)]
pub struct Access(Vec<Token>);

/// Only the hash of what is to be shown is kept.
#[derive(Clone, Debug)]
struct Token {
    reader: Reader,
    hash: blake3::Hash,
}

/// Before the hexadecimal hash of a token, where the token itself is not in the file.
const HASHED: &str = "blake3:";
const SHORTEST: usize = 16;

impl Access {
    /// Reads the file of tokens; an empty path asks for none.
    ///
    /// # Errors
    /// One line that says what is wrong with it.
    pub fn read(file: &Path) -> Result<Self, String> {
        if file.as_os_str().is_empty() {
            return Ok(Self::default());
        }
        let at = |error: &dyn std::fmt::Display| format!("[admin] token_file {}: {error}", file.display());
        let text = std::fs::read_to_string(file).map_err(|error| at(&error))?;
        Self::parse(&text).map_err(|error| at(&error))
    }

    /// One token by itself, which may do everything, or lines of `NAME SCOPE TOKEN`.
    fn parse(text: &str) -> Result<Self, String> {
        let lines: Vec<(usize, &str)> = (1..)
            .zip(text.lines().map(str::trim))
            .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
            .collect();
        if let [(_, only)] = lines[..]
            && !only.contains(char::is_whitespace)
        {
            let reader = Reader { name: "token".to_owned(), scope: Scope::Admin };
            return Ok(Self(vec![Token { reader, hash: hash(only)? }]));
        }
        let mut tokens: Vec<Token> = Vec::new();
        for (number, line) in lines {
            let token = Token::parse(line).map_err(|error| format!("line {number}: {error}"))?;
            if tokens.iter().any(|other| other.reader.name == token.reader.name) {
                return Err(format!(
                    "line {number}: {:?} is there twice; names must differ",
                    token.reader.name
                ));
            }
            tokens.push(token);
        }
        match tokens.is_empty() {
            true => Err(format!("holds fewer than {SHORTEST} characters; write a longer token into it")),
            false => Ok(Self(tokens)),
        }
    }

    /// Who has sent these headers; `None` where a token is needed and none that is known was shown.
    pub fn reader(&self, headers: &HeaderMap) -> Option<Reader> {
        if self.0.is_empty() {
            return Some(Reader { name: "loopback".to_owned(), scope: Scope::Admin });
        }
        let bearer = headers.get(AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        let shown = blake3::hash(bearer?);
        // Hashes compare in constant time, and each is compared.
        let found =
            self.0.iter().fold(None, |found, token| if token.hash == shown { Some(token) } else { found });
        found.map(|token| token.reader.clone())
    }
}

impl Token {
    fn parse(line: &str) -> Result<Token, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, scope, secret] = words[..] else {
            return Err("a line is NAME SCOPE TOKEN, or the file holds one token and nothing else".to_owned());
        };
        let scope = Scope::of_name(scope).ok_or_else(|| {
            let known: Vec<&str> = Scope::ALL.iter().map(|(_, name)| *name).collect();
            format!("{scope:?} is no scope; it is one of {}", known.join(", "))
        })?;
        Ok(Token { reader: Reader { name: name.to_owned(), scope }, hash: hash(secret)? })
    }
}

fn hash(secret: &str) -> Result<blake3::Hash, String> {
    if let Some(hex) = secret.strip_prefix(HASHED) {
        let bytes = ids::unhex(hex).and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
        let bytes =
            bytes.ok_or_else(|| format!("{HASHED} is followed by the 64 hexadecimal digits of a hash"))?;
        return Ok(blake3::Hash::from_bytes(bytes));
    }
    match secret.len() >= SHORTEST {
        true => Ok(blake3::hash(secret.as_bytes())),
        false => Err(format!("a token of fewer than {SHORTEST} characters; write a longer one")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(access: &Access, token: &str) -> Option<Reader> {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, format!("Bearer {token}").parse().expect("a value"));
        access.reader(&headers)
    }

    #[test]
    fn each_token_has_its_name_and_scope() {
        let hashed = blake3::hash(b"the-second-long-token").to_hex();
        let text = format!("# tokens\nscrape metrics the-first-long-token\n\nann content blake3:{hashed}\n");
        let access = Access::parse(&text).expect("is understood");
        let is = |token: &str| reader(&access, token).map(|reader| (reader.name, reader.scope));
        assert_eq!(is("the-first-long-token"), Some(("scrape".to_owned(), Scope::Metrics)));
        assert_eq!(is("the-second-long-token"), Some(("ann".to_owned(), Scope::Content)));
        assert_eq!((is("the-second-long-tokem"), is(&format!("blake3:{hashed}"))), (None, None));
        assert_eq!(access.reader(&HeaderMap::new()), None);
        assert!(Scope::Metrics < Scope::Meta && Scope::Export < Scope::Admin);
    }

    #[test]
    fn one_token_by_itself_may_do_everything_and_so_may_anybody_where_there_is_none() {
        let access = Access::parse("a-token-of-some-length\n").expect("is understood");
        assert_eq!(reader(&access, "a-token-of-some-length").map(|reader| reader.scope), Some(Scope::Admin));
        let open = Access::default().reader(&HeaderMap::new()).expect("anybody");
        assert_eq!((open.name.as_str(), open.scope), ("loopback", Scope::Admin));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, says) in [
            ("", "fewer than 16"),
            ("short", "fewer than 16"),
            (
                "a meta the-first-long-token\nb all the-second-long-token",
                "line 2: \"all\" is no scope; it is one of",
            ),
            ("a meta short", "line 1: a token of fewer"),
            ("a meta", "line 1: a line is NAME SCOPE TOKEN"),
            ("a meta the-first-long-token\na meta the-second-long-token", "twice"),
            ("blake3:12", "64 hexadecimal digits"),
        ] {
            let error = Access::parse(text).expect_err(text);
            assert!(error.contains(says) && !error.contains('\n'), "{text:?}: {error}");
        }
    }
}
