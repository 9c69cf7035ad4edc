//! `weather-agent`: the weather of a few places, the same every day.

use serde_json::json;

use super::help;
use super::turn::{DemoAnswer, DemoStep, DemoTurn, FinishedCall};
use super::words::{bare, has_phrase, strip, words};

/// The session key with the place asked for last.
pub(super) const LAST_LOCATION: &str = "last_mentioned_location";
/// Places of a list, in words.
const NUMBERS: [&str; 3] = ["first", "second", "third"];

/// A place and its weather.
#[derive(Debug)]
struct WeatherPlace {
    name: &'static str,
    /// Alternative names.
    other_names: &'static [&'static str],
    sky: &'static str,
    /// In degrees Fahrenheit.
    temperature: i32,
}

const fn place(
    name: &'static str,
    other_names: &'static [&'static str],
    sky: &'static str,
    temperature: i32,
) -> WeatherPlace {
    WeatherPlace {
        name,
        other_names,
        sky,
        temperature,
    }
}

/// The known places. The part of a name before the comma is its short name.
const PLACES: [WeatherPlace; 10] = [
    place("Berlin", &["Berlin Germany"], "Cloudy", 61),
    place("London", &["London England"], "Rain", 57),
    place("New York, NY", &["New York City", "NYC"], "Sunny", 70),
    place("Paris", &["Paris France"], "Cloudy", 64),
    place("Rahway, NJ", &["Rahway New Jersey"], "Sunny", 72),
    place(
        "San Francisco, CA",
        &["San Francisco California"],
        "Fog",
        59,
    ),
    place("Springfield, IL", &["Springfield Illinois"], "Sunny", 75),
    place(
        "Springfield, MA",
        &["Springfield Massachusetts"],
        "Rain",
        63,
    ),
    place("Springfield, MO", &["Springfield Missouri"], "Cloudy", 71),
    place("Tokyo", &["Tokyo Japan"], "Clear", 77),
];

/// Short names of places, as a pattern for the rules of the coordinator.
pub(super) fn names_pattern() -> String {
    let mut names: Vec<&str> = PLACES.iter().map(WeatherPlace::short_name).collect();
    names.dedup();
    names.join("|")
}

impl WeatherPlace {
    fn short_name(&self) -> &'static str {
        self.name.split(',').next().unwrap_or(self.name)
    }

    /// The words of each of its names.
    fn names(&self) -> impl Iterator<Item = Vec<String>> {
        let names = std::iter::once(&self.name).chain(self.other_names);
        names.map(|name| words(name))
    }

    /// The words that distinguish it from places with the same short name.
    fn distinctions(&self) -> impl Iterator<Item = Vec<String>> {
        let short = words(self.short_name());
        let rests = self
            .names()
            .filter_map(move |name| Some(name.strip_prefix(short.as_slice())?.to_vec()));
        rests.filter(|rest| !rest.is_empty())
    }

    fn is_named_fully_in(&self, text: &[String]) -> bool {
        let short = words(self.short_name());
        let mut names = self.names().filter(|name| *name != short);
        names.any(|name| has_phrase(text, &name))
    }
}

/// Answers a message.
pub(super) fn step(turn: &DemoTurn) -> DemoStep {
    if let Some(said) = help::on_typed_decision(&turn.text) {
        return DemoAnswer::text(said).into();
    }
    let text = words(bare(&turn.text));
    let found = places_named_in(&text);
    match found.as_slice() {
        [one] => weather_answer(one, !has_phrase(&text, &words(one.name))).into(),
        [] => answer_without_place(turn).into(),
        several => ask_which_place(turn, several),
    }
}

/// The places that a text may mean: the one named in full, or all with a matching short name.
fn places_named_in(text: &[String]) -> Vec<&'static WeatherPlace> {
    if let Some(fully) = PLACES.iter().find(|place| place.is_named_fully_in(text)) {
        return vec![fully];
    }
    let mut short = PLACES
        .iter()
        .filter(|place| has_phrase(text, &words(place.short_name())));
    let Some(first) = short.next() else {
        return Vec::new();
    };
    let same = short.filter(|place| place.short_name() == first.short_name());
    std::iter::once(first).chain(same).collect()
}

fn weather_answer(place: &WeatherPlace, says_where: bool) -> DemoAnswer {
    let weather = format!("{}, {}", place.sky, place.temperature);
    let text = if says_where {
        format!("{}: {weather}", place.name)
    } else {
        weather
    };
    let mut answer = DemoAnswer::text(text);
    answer.calls.push(FinishedCall::new(
        "get_weather",
        json!({ "place": place.name }),
        json!({ "sky": place.sky, "temperature": place.temperature, "unit": "F" }),
    ));
    answer
        .set
        .insert(LAST_LOCATION.to_owned(), place.name.into());
    answer
}

/// The message names no known place: answer for the last place, or list the known ones.
fn answer_without_place(turn: &DemoTurn) -> DemoAnswer {
    let asked = unknown_place(&turn.text);
    let last = turn.state.get(LAST_LOCATION).and_then(|last| last.as_str());
    let last = last.and_then(|last| PLACES.iter().find(|place| place.name == last));
    match (asked, last) {
        (Some(asked), _) => DemoAnswer::text(format!(
            "I do not know the weather in {asked}. {}",
            known_places()
        )),
        (None, Some(last)) => weather_answer(last, true),
        (None, None) => DemoAnswer::text(format!("Which place? {}", known_places())),
    }
}

/// The unknown place in the words of the message. `there` does not count.
fn unknown_place(text: &str) -> Option<&str> {
    let text = bare(text);
    let after = |word: &str| {
        let at = text.to_ascii_lowercase().rfind(&format!(" {word} "))?;
        Some(text[at + word.len() + 2..].trim())
    };
    let asked = after("in")
        .or_else(|| after("at"))
        .or_else(|| after("for"))?;
    let asked = strip(asked, "the").unwrap_or(asked);
    let is_time = [
        "morning",
        "evening",
        "afternoon",
        "moment",
        "today",
        "tomorrow",
        "now",
    ];
    let is_place = !asked.is_empty() && !is_time.contains(&asked.to_lowercase().as_str());
    let clipped = asked
        .char_indices()
        .nth(80)
        .map_or(asked, |(at, _)| &asked[..at]);
    is_place.then_some(clipped)
}

fn known_places() -> String {
    let names: Vec<&str> = PLACES.iter().map(|place| place.name).collect();
    format!("I know the weather in: {}.", names.join("; "))
}

/// Several places have this name: ask the user which one.
fn ask_which_place(turn: &DemoTurn, several: &[&'static WeatherPlace]) -> DemoStep {
    let short = several[0].short_name();
    let choices: Vec<&str> = several.iter().map(|place| place.name).collect();
    let choices = choices.join("; ");
    let Some(decided) = turn.decisions.last() else {
        return ask(several, &format!("I know {}: {choices}.", several.len()));
    };
    if decided.status != "answered" {
        let why = match decided.status.as_str() {
            "expired" => "Nobody told me in time",
            _ => "Nobody wants to tell me",
        };
        return DemoAnswer::text(format!(
            "{why} which {short} is meant. Ask again with one of: {choices}."
        ))
        .into();
    }
    let said = decided
        .content
        .as_ref()
        .and_then(|content| content.as_str());
    let said = said.or(decided.comment.as_deref()).unwrap_or_default();
    match find_chosen(several, said) {
        Some(place) => weather_answer(place, true).into(),
        None => DemoAnswer::text(format!(
            "I do not know which {short} is meant. Ask again with one of: {choices}."
        ))
        .into(),
    }
}

fn ask(several: &[&'static WeatherPlace], message: &str) -> DemoStep {
    DemoStep::Ask(json!({
        "kind": "question", "title": format!("Which {}?", several[0].short_name()), "message": message,
        "response_schema": { "type": "string", "pattern": choice_pattern(several) },
        "expires_in_seconds": 3600,
    }))
}

/// Texts that choose one of some places: they contain a word that distinguishes it, or are its number.
fn choice_pattern(several: &[&'static WeatherPlace]) -> String {
    let ways = several.iter().flat_map(|place| place.distinctions());
    let ways: Vec<String> = ways.map(|way| way.join(r"\W+")).collect();
    let numbers = NUMBERS.iter().take(several.len()).enumerate();
    let numbers: Vec<String> = numbers
        .map(|(n, word)| format!("{}|{word}", n + 1))
        .collect();
    format!(
        r"(?i)(^|\W)({})(\W|$)|^\W*(the )?({})( one)?\W*$",
        ways.join("|"),
        numbers.join("|")
    )
}

/// The place that an answer names: by its full name, by a distinguishing word, or by its number.
fn find_chosen(several: &[&'static WeatherPlace], said: &str) -> Option<&'static WeatherPlace> {
    let said = words(said);
    let by_number = |index: usize| {
        let has = |number: &str| said.iter().any(|word| word == number);
        has(&(index + 1).to_string()) || NUMBERS.get(index).is_some_and(|word| has(word))
    };
    let is_named = |place: &&&WeatherPlace| place.distinctions().any(|way| has_phrase(&said, &way));
    let named = several.iter().find(is_named);
    let numbered = (0..several.len()).find(|index| by_number(*index));
    named.or(numbered.map(|index| &several[index])).copied()
}

#[cfg(test)]
mod tests {
    use statehold_engine::Schema;

    use super::*;
    use crate::demo::turn::DemoDecision;

    fn turn(text: &str) -> DemoTurn {
        DemoTurn {
            text: text.to_owned(),
            ..DemoTurn::default()
        }
    }

    fn answered(turn: &DemoTurn) -> DemoAnswer {
        match step(turn) {
            DemoStep::Answer(answer) => *answer,
            other => panic!("no answer but {other:?}"),
        }
    }

    #[track_caller]
    fn check(text: &str, said: &str, place: &str) {
        let answer = answered(&turn(text));
        assert_eq!(answer.text, said, "{text}");
        assert_eq!(answer.set[LAST_LOCATION], place, "{text}");
    }

    #[test]
    fn the_dialogue_of_the_concept_is_word_for_word() {
        check(
            "What's the temperature in Rahway, NJ",
            "Sunny, 72",
            "Rahway, NJ",
        );
    }

    #[test]
    fn places_are_known_by_all_their_names() {
        check("What's the weather in Paris?", "Cloudy, 64", "Paris");
        check("paris, france!", "Cloudy, 64", "Paris");
        check("weather in rahway nj", "Sunny, 72", "Rahway, NJ");
    }

    #[test]
    fn the_answer_names_the_place_unless_the_message_does_in_full() {
        check(
            "How warm is it in rahway?",
            "Rahway, NJ: Sunny, 72",
            "Rahway, NJ",
        );
        check("weather in NYC", "New York, NY: Sunny, 70", "New York, NY");
        check(
            "Weather for springfield, massachusetts",
            "Springfield, MA: Rain, 63",
            "Springfield, MA",
        );
    }

    #[test]
    fn a_name_of_several_places_is_asked_back_and_the_answer_counts() {
        let asked = turn("What's the weather in Springfield?");
        let DemoStep::Ask(hold) = step(&asked) else {
            panic!("it knows");
        };
        assert_eq!(hold["kind"], "question");
        assert_eq!(hold["title"], "Which Springfield?");
        let message = hold["message"].as_str().expect("a text");
        assert!(message.contains("Springfield, MO"), "{message}");
        let schema = Schema::new(&hold["response_schema"].to_string()).expect("a schema");
        let fits = |said: &str| schema.errors(&said.into()).is_empty();
        for other in [
            "What's 2+2",
            "Delete user 2",
            "the nice one",
            "",
            "4",
            "Mobile",
        ] {
            assert!(!fits(other), "{other}");
        }
        for (said, weather) in [
            ("Springfield, IL", "Springfield, IL: Sunny, 75"),
            ("the one in Massachusetts", "Springfield, MA: Rain, 63"),
            ("mo", "Springfield, MO: Cloudy, 71"),
            ("the second", "Springfield, MA: Rain, 63"),
            ("3", "Springfield, MO: Cloudy, 71"),
        ] {
            assert!(fits(said), "{said}");
            let decided = DemoDecision {
                status: "answered".to_owned(),
                content: Some(said.into()),
                ..DemoDecision::default()
            };
            let decisions = vec![decided];
            let turn = DemoTurn {
                decisions,
                ..asked.clone()
            };
            assert_eq!(answered(&turn).text, weather, "{said}");
        }
    }

    #[test]
    fn a_question_that_nobody_answers_is_said() {
        let mut turn = turn("weather in Springfield");
        turn.decisions.push(DemoDecision {
            status: "expired".to_owned(),
            ..DemoDecision::default()
        });
        assert!(answered(&turn).text.starts_with("Nobody told me in time"));
    }

    #[test]
    fn unknown_places_are_told_which_ones_are_known() {
        let answer = answered(&turn("What's the weather in Atlantis?"));
        assert!(
            answer
                .text
                .starts_with("I do not know the weather in Atlantis. I know"),
            "{}",
            answer.text
        );
        assert!(answer.text.contains("Rahway, NJ") && answer.set.is_empty());
        let long = answered(&turn(&format!("weather in {}", "ä".repeat(1_000))));
        assert!(long.text.len() < 500);
    }

    #[test]
    fn without_a_place_the_last_one_is_meant() {
        let asked = turn("And how is the weather there now?");
        assert!(answered(&asked).text.starts_with("Which place?"));
        let mut later = asked;
        later.state.insert(LAST_LOCATION.to_owned(), "Paris".into());
        assert_eq!(answered(&later).text, "Paris: Cloudy, 64");
    }
}
