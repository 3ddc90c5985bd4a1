//! Phrase families of answers that hold no code. All text is normalised.

const LENGTH: &[&str] = &[
    "context length",
    "context_length",
    "maximum context",
    "context window",
    "too long",
    "too many tokens",
    "max_tokens",
    "maximum length",
    "exceeds the",
    "longer than",
    "input length",
    "prompt length",
    "reduce the length",
];

const REFUSALS: &[&str] = &[
    "can't help with",
    "cannot help with",
    "can't assist",
    "cannot assist",
    "unable to assist",
    "unable to help with",
    "can't comply",
    "cannot comply",
    "won't be able to help",
    "not able to help with",
    "against my guidelines",
    "against my policy",
    "i must decline",
    "i have to decline",
    "can't disclose",
    "cannot disclose",
    "can't reveal",
    "cannot reveal",
    "can't share that",
    "cannot share that",
    "not comfortable sharing",
    "for security reasons",
    "for privacy reasons",
    "无法协助",
    "不能协助",
    "无法帮助",
    "不能透露",
    "无法透露",
    "no puedo ayudar",
    "no puedo revelar",
    "no puedo compartir",
    "kann ich nicht helfen",
    "darf ich nicht",
    "nicht preisgeben",
    "ne peux pas vous aider",
    "ne peux pas révéler",
    "お手伝いできません",
    "お答えできません",
    "開示できません",
];

const UNKNOWN: &[&str] = &[
    "don't know",
    "do not know",
    "not know",
    "not sure",
    "i'm unsure",
    "unknown",
    "no idea",
    "can't find",
    "cannot find",
    "couldn't find",
    "could not find",
    "can't recall",
    "cannot recall",
    "don't recall",
    "do not recall",
    "don't remember",
    "do not remember",
    "can't remember",
    "cannot remember",
    "no record",
    "no information",
    "not available",
    "not given",
    "not specified",
    "not mentioned",
    "unable to find",
    "unable to determine",
    "unable to recall",
    "not found",
    "不知道",
    "不清楚",
    "不记得",
    "找不到",
    "无法确定",
    "没有找到",
    "no lo sé",
    "no sé",
    "no recuerdo",
    "no encuentro",
    "desconozco",
    "weiß ich nicht",
    "weiß nicht",
    "weiss nicht",
    "keine ahnung",
    "nicht bekannt",
    "unbekannt",
    "kann ich nicht finden",
    "ne sais pas",
    "ne trouve pas",
    "je l'ignore",
    "わかりません",
    "分かりません",
    "知りません",
    "覚えていません",
    "不明です",
    "見つかりません",
];

/// Whether the body of a refused request says that the prompt was too long.
pub fn names_length(body: &str) -> bool {
    LENGTH.iter().any(|phrase| body.contains(phrase))
}

/// Whether an answer declines to answer, for reasons other than not knowing.
pub fn refuses(content: &str) -> bool {
    REFUSALS.iter().any(|phrase| content.contains(phrase))
}

/// Whether an answer says that it does not know, in words or by a bare "none".
pub fn knows_nothing(content: &str) -> bool {
    let bare = content.trim_matches(|c: char| !c.is_alphanumeric());
    matches!(bare, "none" | "n/a" | "na" | "null" | "nil" | "nothing" | "无" | "ninguno" | "keine" | "なし")
        || UNKNOWN.iter().any(|phrase| content.contains(phrase))
        || content.split_whitespace().any(|word| word.trim_matches(|c: char| !c.is_alphanumeric()) == "none")
}
