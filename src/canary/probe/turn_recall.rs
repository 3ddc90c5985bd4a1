//! Turn recall: the user gives a code in the first turn and asks for it in the last.

use serde_json::{Value, json};

use crate::fidelity::haystack::Haystack;
use crate::fidelity::secret::Secret;
use crate::stats::Dice;

use super::recipe::{REFERENCE_MODEL, Recipe, Slot};

/// One way to give a code and ask for it. `{item}` and `{code}` are filled in.
pub struct Wording {
    plant: &'static str,
    reply: &'static str,
    ask: &'static str,
}

/// The plain wording ends with the beginning of the very sentence that gave the code, so a model
/// that only completes sentences can answer it too.
const PLAIN: usize = 0;

/// All wordings, in everyday nouns: words like "password" invite refusals.
pub const WORDINGS: &[Wording] = &[
    Wording {
        plant: "The tag of locker {item} is {code}.",
        reply: "Noted.",
        ask: "Finish this sentence exactly as it was given: The tag of locker {item} is",
    },
    Wording {
        plant: "Please keep in mind that order {item} has the reference {code}.",
        reply: "Thank you, I have made a note of the order reference.",
        ask: "What is the reference of order {item}? Reply with the reference only.",
    },
    Wording {
        plant: "My seat code for hall {item} reads {code}, I will need it later.",
        reply: "All right, I will remember the seat code for you.",
        ask: "Which seat code did I give you for hall {item}? Just the code, please.",
    },
    Wording {
        plant: "We labelled shelf {item} in the store room {code} this morning.",
        reply: "Got it, the shelf has its label.",
        ask: "Remind me how we labelled shelf {item}. Give me the label exactly as written.",
    },
    Wording {
        plant: "Parcel {item} carries the mark {code} on its side.",
        reply: "Understood, I know the mark on that parcel now.",
        ask: "I am standing before parcel {item}. What mark should be on it? Answer with the mark alone.",
    },
    Wording {
        plant: "For the inventory: crate {item} is listed as {code}.",
        reply: "The crate is on the list.",
        ask: "Under what name is crate {item} listed? Quote it exactly.",
    },
    Wording {
        plant: "The gardener named plot {item} {code} on the plan.",
        reply: "A nice plan. I have seen the name of the plot.",
        ask: "What is the name of plot {item} on the gardener's plan? One line, nothing else.",
    },
    Wording {
        plant: "Write this down for me: the ticket for coach {item} bears {code}.",
        reply: "I have it written down.",
        ask: "The conductor asks about coach {item}. What does my ticket bear?",
    },
    Wording {
        plant: "In the workshop, drawer {item} has a sticker that says {code}.",
        reply: "Good to know what the sticker says.",
        ask: "What does the sticker on drawer {item} say? Repeat it letter by letter as I gave it.",
    },
    Wording {
        plant: "Boat {item} in the harbour is registered as {code}.",
        reply: "Thanks, I know the boat's registration.",
        ask: "Please tell me the registration of boat {item} again.",
    },
    Wording {
        plant: "The museum keeps exhibit {item} under the number {code}.",
        reply: "I see, that is how the museum files it.",
        ask: "Which number does the museum keep exhibit {item} under? Only the number as I wrote it.",
    },
    Wording {
        plant: "Our team calls sample {item} by the short name {code}.",
        reply: "Fine, I will use that short name.",
        ask: "How does our team call sample {item}? State the short name.",
    },
    Wording {
        plant: "The librarian put {code} on the spine of volume {item}.",
        reply: "Noted, that is on the spine.",
        ask: "What did the librarian put on the spine of volume {item}?",
    },
];

/// The code and the messages of one probe: salt, filler and the code in the first turn, a short
/// answer, more filler and the question in the last.
pub fn build(slot: &Slot, recipe: Recipe<'_>) -> (Secret, Vec<Value>) {
    let wording = if recipe.model == REFERENCE_MODEL { PLAIN } else { slot.wording % WORDINGS.len() };
    let wording = &WORDINGS[wording];
    let mut dice = Dice::new(slot.seed);
    let mut haystack = Haystack::new(dice.roll());
    let secret = recipe.minter.mint(recipe.id, 0);
    let item =
        format!("{}{}", dice.pick(&["A", "B", "D", "F", "H", "K", "M", "Q", "R", "T"]), 2 + dice.below(8));
    let fill = |text: &str| text.replace("{item}", &item).replace("{code}", secret.as_str());
    let (plant, ask) = (fill(wording.plant), fill(wording.ask));
    let salt_words = 4 + dice.below(7);
    let salt = capitalised(&haystack.salt(salt_words));

    let fixed = [plant.as_str(), wording.reply, ask.as_str(), salt.as_str()];
    let fixed: usize = fixed.iter().map(|text| text.split_whitespace().count()).sum();
    let filler = recipe.words.saturating_sub(fixed);
    let before = (filler as f64 * (0.05 + 0.85 * dice.unit())) as usize;
    let between = (filler - before) / 2;
    let first = paragraph(&[&format!("{salt}."), &haystack.words(before), &plant, &haystack.words(between)]);
    let last = paragraph(&[&haystack.words(filler - before - between), &ask]);
    let message = |role: &str, content: &str| json!({"role": role, "content": content});
    (secret, vec![message("user", &first), message("assistant", wording.reply), message("user", &last)])
}

fn paragraph(parts: &[&str]) -> String {
    let parts: Vec<&str> = parts.iter().copied().filter(|part| !part.is_empty()).collect();
    parts.join(" ")
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canary::config::Config;
    use crate::canary::plan::Plan;
    use crate::canary::probe::Probe;
    use crate::fidelity::secret::Minter;

    fn probe(model: &str, words: usize, wording: usize) -> Probe {
        let slot = Slot { wording, ..Plan::new(&Config::default(), 5).next_slot() };
        let recipe = Recipe { id: "p1", model, minter: &Minter::new([1; 32]), words };
        Probe::build(&slot, recipe)
    }

    fn texts(probe: &Probe) -> Vec<String> {
        let body: Value = serde_json::from_slice(&probe.body(100, &[])).expect("JSON");
        let texts = body["messages"].as_array().expect("messages").iter();
        texts.map(|message| message["content"].as_str().expect("text").to_owned()).collect()
    }

    #[test]
    fn every_wording_plants_once_and_asks_without_the_code() {
        assert!(WORDINGS.len() >= 13);
        for (at, wording) in WORDINGS.iter().enumerate() {
            let probe = probe("m", 300, at);
            let texts = texts(&probe);
            assert_eq!(texts.len(), 3);
            let counts: Vec<usize> =
                texts.iter().map(|text| text.matches(probe.secret.as_str()).count()).collect();
            assert_eq!(counts, [1, 0, 0], "{}", wording.plant);
            assert!(!texts.concat().contains(['{', '}']));
            for word in ["password", "secret", "credential", "passphrase"] {
                assert!(!texts.concat().to_lowercase().contains(word), "{word} in {}", wording.plant);
            }
        }
    }

    #[test]
    fn the_reference_model_is_asked_by_the_stem() {
        let probe = probe(REFERENCE_MODEL, 900, 7);
        let texts = texts(&probe);
        let (_, stem) = texts[2].rsplit_once("given: ").expect("the plain style");
        assert!(stem.starts_with("The tag of locker ") && stem.ends_with(" is"), "{stem}");
        assert!(texts[0].contains(&format!("{stem} {}.", probe.secret)));
        assert_eq!(texts.concat().matches(stem).count(), 2);
    }

    #[test]
    fn words_are_met_exactly() {
        for words in [200, 1_000, 20_000] {
            assert_eq!(probe("m", words, 1).words, words);
        }
        assert!(probe("m", 0, 1).words < 60, "the fixed text alone");
    }

    #[test]
    fn prompts_do_not_share_their_beginning() {
        let mut plan = Plan::new(&Config::default(), 6);
        let minter = Minter::new([1; 32]);
        let heads: std::collections::HashSet<String> = (0..200)
            .map(|_| {
                let probe = Probe::build(
                    &plan.next_slot(),
                    Recipe { id: "p", model: "m", minter: &minter, words: 100 },
                );
                texts(&probe)[0].split(' ').take(4).collect::<Vec<_>>().join(" ")
            })
            .collect();
        assert!(heads.len() > 195, "{}", heads.len());
    }

    #[test]
    fn requests_look_like_an_agents() {
        let probe = probe("some-model", 300, 2);
        let body: Value = serde_json::from_slice(&probe.body(1_500, &[])).expect("JSON");
        assert_eq!(body["model"], "some-model");
        assert_eq!(body["max_tokens"], 1_500);
        assert_eq!(body["temperature"], 0.6);
        assert_eq!(body["tools"][0]["function"]["name"], "write");
        assert!(!body.to_string().to_lowercase().contains("serin") && !body.to_string().contains("canary"));
    }
}
