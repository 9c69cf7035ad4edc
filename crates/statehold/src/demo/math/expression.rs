//! Parses and evaluates sums in signs or words: `2+2`, `3 times (4 minus 1)`, `10 ÷ 4`.

/// The deepest nesting of brackets.
const DEPTH_MAX: usize = 32;
/// The largest number. Whole numbers up to here are exact.
const NUMBER_MAX: f64 = 1e15;
/// The longest number in a text, with its point: more digits would be lost.
const LENGTH_MAX: usize = 17;

/// Why a text has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SumError {
    /// The text is not a sum.
    NoSum,
    /// A number on the way to the result is too large.
    TooLarge,
    DivisionByZero,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum SumToken {
    Number(f64),
    Plus,
    Minus,
    Times,
    Over,
    Open,
    Close,
}

/// Evaluates a sum.
///
/// # Errors
///
/// If the text is not a sum, or the sum has no result.
pub(super) fn evaluate(text: &str) -> Result<f64, SumError> {
    let tokens = tokens(text)?;
    let mut reader = SumParser {
        tokens: &tokens,
        depth: 0,
    };
    let value = reader.sum()?;
    if reader.tokens.is_empty() {
        // Adding zero makes a zero of -0.
        Ok(value + 0.0)
    } else {
        Err(SumError::NoSum)
    }
}

fn tokens(text: &str) -> Result<Vec<SumToken>, SumError> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let (token, length) = match first {
            '+' => (SumToken::Plus, 1),
            '-' | '−' | '–' => (SumToken::Minus, first.len_utf8()),
            '*' | '×' | '·' => (SumToken::Times, first.len_utf8()),
            '/' | '÷' | ':' => (SumToken::Over, first.len_utf8()),
            '(' => (SumToken::Open, 1),
            ')' => (SumToken::Close, 1),
            '0'..='9' | '.' => {
                let length = run(rest, |c| c.is_ascii_digit() || c == '.');
                let number = rest[..length].parse().map_err(|_| SumError::NoSum)?;
                if length > LENGTH_MAX {
                    return Err(SumError::TooLarge);
                }
                (SumToken::Number(limited(number)?), length)
            }
            _ => word(rest)?,
        };
        tokens.push(token);
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

/// Parses a word for a sign; returns its length too.
fn word(text: &str) -> Result<(SumToken, usize), SumError> {
    let length = run(text, char::is_alphabetic);
    let after = text[length..].trim_start();
    // "multiplied by" and "divided by" are one sign of two words.
    let by = text.len() - after.len() + 2;
    let has_by = after
        .get(..2)
        .is_some_and(|next| next.eq_ignore_ascii_case("by"))
        && !after[2..].starts_with(char::is_alphabetic);
    match text[..length].to_lowercase().as_str() {
        "plus" | "and" => Ok((SumToken::Plus, length)),
        "minus" => Ok((SumToken::Minus, length)),
        "times" | "x" => Ok((SumToken::Times, length)),
        "over" => Ok((SumToken::Over, length)),
        "multiplied" if has_by => Ok((SumToken::Times, by)),
        "divided" if has_by => Ok((SumToken::Over, by)),
        _ => Err(SumError::NoSum),
    }
}

fn limited(value: f64) -> Result<f64, SumError> {
    if value.abs() <= NUMBER_MAX {
        Ok(value)
    } else {
        Err(SumError::TooLarge)
    }
}

/// The length of the prefix whose characters all match, in bytes.
fn run(text: &str, is_one: impl Fn(char) -> bool) -> usize {
    text.find(|c| !is_one(c)).unwrap_or(text.len())
}

struct SumParser<'t> {
    tokens: &'t [SumToken],
    depth: usize,
}

impl SumParser<'_> {
    fn take(&mut self, wanted: impl Fn(SumToken) -> bool) -> Option<SumToken> {
        let (first, rest) = self.tokens.split_first()?;
        wanted(*first).then(|| {
            self.tokens = rest;
            *first
        })
    }

    fn sum(&mut self) -> Result<f64, SumError> {
        let mut value = self.product()?;
        while let Some(sign) = self.take(|token| matches!(token, SumToken::Plus | SumToken::Minus))
        {
            let next = self.product()?;
            value = limited(match sign {
                SumToken::Minus => value - next,
                _ => value + next,
            })?;
        }
        Ok(value)
    }

    fn product(&mut self) -> Result<f64, SumError> {
        let mut value = self.part()?;
        while let Some(sign) = self.take(|token| matches!(token, SumToken::Times | SumToken::Over))
        {
            let next = self.part()?;
            value = limited(match sign {
                SumToken::Times => value * next,
                _ if next == 0.0 => return Err(SumError::DivisionByZero),
                _ => value / next,
            })?;
        }
        Ok(value)
    }

    fn part(&mut self) -> Result<f64, SumError> {
        let mut is_negative = false;
        while self.take(|token| token == SumToken::Minus).is_some() {
            is_negative = !is_negative;
        }
        let value = if self.take(|token| token == SumToken::Open).is_some() {
            self.depth += 1;
            if self.depth > DEPTH_MAX {
                return Err(SumError::NoSum);
            }
            let value = self.sum()?;
            self.take(|token| token == SumToken::Close)
                .ok_or(SumError::NoSum)?;
            self.depth -= 1;
            value
        } else {
            match self.take(|token| matches!(token, SumToken::Number(_))) {
                Some(SumToken::Number(value)) => value,
                _ => return Err(SumError::NoSum),
            }
        };
        Ok(if is_negative { -value } else { value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, result: &str) {
        let found = evaluate(text).map(|value| value.to_string());
        assert_eq!(found.as_deref(), Ok(result), "{text}");
    }

    #[test]
    fn signs_and_words_mean_the_same() {
        check("2+2", "4");
        check("2 plus 2", "4");
        check("7 − 10", "-3");
        check("7 MINUS 10", "-3");
        check("6 x 7", "42");
        check("6 multiplied by 7", "42");
        check("10 ÷ 4", "2.5");
        check("10 divided by 4", "2.5");
        check("2 and 3", "5");
    }

    #[test]
    fn products_come_before_sums_and_brackets_before_both() {
        check("2+3*4", "14");
        check("(2+3)*4", "20");
        check("2 - 3 - 4", "-5");
        check("100/5/2", "10");
        check("-(2+3)", "-5");
        check("2*-3", "-6");
    }

    #[test]
    fn what_is_no_sum_is_said_to_be_none() {
        for text in [
            "",
            "hello",
            "2+",
            "2 2",
            "(2",
            "2)",
            "divided 2",
            "2 divided bypass 3",
            "é",
        ] {
            assert_eq!(evaluate(text), Err(SumError::NoSum), "{text}");
        }
        let deep = format!("{}1{}", "(".repeat(40), ")".repeat(40));
        assert_eq!(evaluate(&deep), Err(SumError::NoSum));
        for text in [".", "1.2.3"] {
            assert_eq!(evaluate(text), Err(SumError::NoSum), "{text}");
        }
    }

    #[test]
    fn what_has_no_result_is_said_and_never_wraps() {
        for text in ["1/0", "0/0", "1/(2-2)"] {
            assert_eq!(evaluate(text), Err(SumError::DivisionByZero), "{text}");
        }
        let tiny = format!("1/0.{}1", "0".repeat(330));
        for text in [
            &"9".repeat(60),
            "1000000000000000+1",
            "-40000000*40000000",
            &tiny,
        ] {
            assert_eq!(evaluate(text), Err(SumError::TooLarge), "{text}");
        }
        check("-0", "0");
        check("999999999999999+1", "1000000000000000");
    }
}
