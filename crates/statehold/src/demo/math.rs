//! `math-agent`: sums, square roots, fibonacci numbers.

mod expression;

use serde_json::{Value, json};

use self::expression::{SumError, evaluate};
use super::help;
use super::turn::{DemoAnswer, DemoStep, DemoTurn, FinishedCall};
use super::words::{bare, strip_prefixes};

/// The name of the tool.
const FIBONACCI: &str = "fibonacci";
/// The largest index whose fibonacci number fits into `u128`.
const FIBONACCI_MAX: u32 = 186;
/// How many decimals are shown, and how many digits in all.
const DECIMALS_MAX: usize = 10;
const DIGITS_MAX: usize = 14;
/// The rounding error of a few steps, as a part of their result.
const ROUNDING: f64 = 1e-15;
/// The largest exact integer of JSON; larger numbers are sent as text.
const JSON_INTEGER_MAX: u128 = (1 << 53) - 1;
/// The longest sum that is parsed, in bytes.
const SUM_BYTES_MAX: usize = 500;
/// How many earlier results the answer repeats.
const EARLIER_MAX: usize = 3;

/// Phrases before the actual question.
const PREFIXES: [&str; 15] = [
    "what's",
    "what’s",
    "whats",
    "what is",
    "how much is",
    "now",
    "and",
    "then",
    "please",
    "can you",
    "could you",
    "calculate",
    "compute",
    "tell me",
    "the result of",
];

/// Answers a message.
pub(super) fn step(turn: &DemoTurn) -> DemoStep {
    answer(&turn.text, &turn.memory).into()
}

fn answer(text: &str, memory: &[FinishedCall]) -> DemoAnswer {
    if let Some(said) = help::on_typed_decision(text) {
        return DemoAnswer::text(said);
    }
    let asked = strip_prefixes(bare(text), &PREFIXES);
    if asked.len() > SUM_BYTES_MAX {
        return DemoAnswer::text(
            "That is longer than I can calculate: I read up to 500 characters.",
        );
    }
    if let Some(of) = argument(asked, &["fibonacci", "fib"]) {
        return fibonacci_answer(of, memory);
    }
    if let Some(of) = argument(asked, &["square root", "sqrt", "root"]) {
        return DemoAnswer::text(root_answer(of));
    }
    match evaluate(asked) {
        Ok(value) => DemoAnswer::text(format!("{asked} is {}", shown(value))),
        Err(error) => DemoAnswer::text(explain(error, help::TEXT)),
    }
}

/// The argument of a function: the text after its name, `of` and brackets.
fn argument<'t>(asked: &'t str, names: &[&str]) -> Option<&'t str> {
    let asked = strip_prefixes(asked, &["the"]);
    let rest = names.iter().find_map(|name| {
        let (head, rest) = asked.split_at_checked(name.len())?;
        let is_whole = !rest.starts_with(char::is_alphanumeric);
        (head.eq_ignore_ascii_case(name) && is_whole).then_some(rest)
    })?;
    let rest = strip_prefixes(rest.trim(), &["number", "of"]);
    let inner = rest
        .strip_prefix('(')
        .and_then(|rest| rest.strip_suffix(')'));
    // Unpaired brackets stay: `(1+2)*(3+4)`.
    Some(match inner {
        Some(inner) if !inner.contains(['(', ')']) => inner.trim(),
        _ => rest,
    })
}

/// Why there is no result. `no_sum` is the text for an input that is not a sum.
fn explain(error: SumError, no_sum: &'static str) -> &'static str {
    match error {
        SumError::NoSum => no_sum,
        SumError::TooLarge => "That gets too large for me: I calculate with up to 15 digits.",
        SumError::DivisionByZero => "Nothing can be divided by zero.",
    }
}

/// The number as people write it; `about` if it has more decimals than are shown.
fn shown(value: f64) -> String {
    let whole_digits = value.abs().trunc().to_string().len();
    let decimals = DECIMALS_MAX.min(DIGITS_MAX.saturating_sub(whole_digits));
    let rounded = format!("{value:.decimals$}").parse();
    let rounded: f64 = rounded.expect("a number in decimals is a number");
    // Adding zero makes a zero of -0.
    let text = (rounded + 0.0).to_string();
    if (value - rounded).abs() <= value.abs() * ROUNDING {
        text
    } else {
        format!("about {text}")
    }
}

fn root_answer(of: &str) -> String {
    match evaluate(of) {
        Ok(value) if value < 0.0 => format!("The square root of {of} is not a real number."),
        Ok(value) => format!("The square root of {of} is {}", shown(value.sqrt())),
        Err(error) => {
            let no_sum =
                "I can take the square root of a number: try \"What's the square root of 121?\"";
            explain(error, no_sum).to_owned()
        }
    }
}

fn fibonacci_answer(of: &str, memory: &[FinishedCall]) -> DemoAnswer {
    let Some(n) = whole(of) else {
        return DemoAnswer::text(format!(
            "I can calculate fibonacci(0) to fibonacci({FIBONACCI_MAX}): try \"Calculate fibonacci(10)\""
        ));
    };
    let Some(value) = fibonacci(n) else {
        return DemoAnswer::text(format!(
            "fibonacci({n}) is too large for me: the largest I can calculate is fibonacci({FIBONACCI_MAX})."
        ));
    };
    let said = format!("fibonacci({n}) is {value}");
    let earlier = earlier(n, memory);
    let text = if earlier.is_empty() {
        said
    } else {
        format!("{said} (earlier: {})", earlier.join(", "))
    };
    let call = FinishedCall::new(FIBONACCI, json!({ "n": n }), as_json(value));
    DemoAnswer {
        calls: vec![call],
        ..DemoAnswer::text(text)
    }
}

fn whole(text: &str) -> Option<u32> {
    evaluate(text).ok()?.to_string().parse().ok()
}

fn fibonacci(n: u32) -> Option<u128> {
    if n > FIBONACCI_MAX {
        return None;
    }
    let (mut value, mut next) = (0_u128, 1_u128);
    for _ in 0..n {
        // The last `next` is beyond the result and may overflow; it is never shown.
        (value, next) = (next, value.wrapping_add(next));
    }
    Some(value)
}

fn as_json(value: u128) -> Value {
    match u64::try_from(value) {
        Ok(small) if value <= JSON_INTEGER_MAX => small.into(),
        _ => value.to_string().into(),
    }
}

/// Earlier results of this conversation, from the restored calls, newest first, without repeats.
fn earlier(n: u32, memory: &[FinishedCall]) -> Vec<String> {
    let mut told: Vec<String> = Vec::new();
    let calls = memory.iter().rev().filter(|call| call.name == FIBONACCI);
    for call in calls {
        let Some(of) = call.arguments["n"]
            .as_u64()
            .filter(|of| *of != u64::from(n))
        else {
            continue;
        };
        let value = match &call.result {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let said = format!("fibonacci({of}) is {value}");
        if !told.contains(&said) {
            told.push(said);
        }
    }
    told.truncate(EARLIER_MAX);
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, said: &str) {
        assert_eq!(answer(text, &[]).text, said, "{text}");
    }

    #[test]
    fn the_dialogue_of_the_concept_is_word_for_word() {
        check("What's 2+2", "2+2 is 4");
        check(
            "What's the square root of 121?",
            "The square root of 121 is 11",
        );
    }

    #[test]
    fn sums_are_answered_as_they_were_asked() {
        check("What is 6 times 7?", "6 times 7 is 42");
        check("please calculate (1+2)*(3+4).", "(1+2)*(3+4) is 21");
        check("what’s 10 / 4 =", "10 / 4 is 2.5");
        check("1/3", "1/3 is about 0.3333333333");
        check("And now 5-8", "5-8 is -3");
    }

    #[test]
    fn numbers_are_shown_as_people_write_them() {
        check("0.1 + 0.2", "0.1 + 0.2 is 0.3");
        check("1/3*3", "1/3*3 is 1");
        check("-1/8", "-1/8 is -0.125");
        check("007.50", "007.50 is 7.5");
        check("0 * -3", "0 * -3 is 0");
        check("100/7", "100/7 is about 14.2857142857");
        check("12345678.12345 * 1", "12345678.12345 * 1 is 12345678.12345");
        check("999999999999999", "999999999999999 is 999999999999999");
        check("0-0.00000000001", "0-0.00000000001 is about 0");
    }

    #[test]
    fn roots_in_words_and_signs() {
        check("sqrt(2)", "The square root of 2 is about 1.4142135624");
        check("square root of 2.25", "The square root of 2.25 is 1.5");
        check("sqrt(-4)", "The square root of -4 is not a real number.");
        check("root of (100+21)", "The square root of 100+21 is 11");
    }

    #[test]
    fn what_cannot_be_calculated_gets_a_plain_sentence() {
        check("What's 1/0?", "Nothing can be divided by zero.");
        let large = "9".repeat(39);
        check(
            &format!("{large} * {large}"),
            "That gets too large for me: I calculate with up to 15 digits.",
        );
        check(
            &"1+".repeat(300),
            "That is longer than I can calculate: I read up to 500 characters.",
        );
        check("Who are you?", help::TEXT);
        check(
            "fibonacci(187)",
            "fibonacci(187) is too large for me: the largest I can calculate is fibonacci(186).",
        );
        check(
            "fibonacci of a house",
            "I can calculate fibonacci(0) to fibonacci(186): try \"Calculate fibonacci(10)\"",
        );
    }

    #[test]
    fn fibonacci_is_a_tool_call_and_remembers_the_calls_it_made() {
        let first = answer("Calculate fibonacci(10)", &[]);
        assert_eq!(first.text, "fibonacci(10) is 55");
        assert_eq!(first.calls.len(), 1);
        assert_eq!(first.calls[0].arguments, json!({ "n": 10 }));
        assert_eq!(first.calls[0].result, json!(55));
        let second = answer("Now calculate fibonacci(20)", &first.calls);
        assert_eq!(
            second.text,
            "fibonacci(20) is 6765 (earlier: fibonacci(10) is 55)"
        );
        let again = answer("the fibonacci number of 10", &first.calls);
        assert_eq!(again.text, "fibonacci(10) is 55");
    }

    #[test]
    fn the_largest_fibonacci_number_is_right_and_kept_whole() {
        let last = answer("fib(186)", &[]);
        let value = "332825110087067562321196029789634457848";
        assert_eq!(last.text, format!("fibonacci(186) is {value}"));
        assert_eq!(last.calls[0].result, json!(value));
        assert_eq!(answer("fib 0", &[]).text, "fibonacci(0) is 0");
    }
}
