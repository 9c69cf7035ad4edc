//! Sums in signs or in words: `2+2`, `3 times (4 minus 1)`, `10 ÷ 4`.

use super::number::{Number, Trouble};

/// How deep brackets may be nested.
const DEPTH_MAX: usize = 32;

/// What is wrong with a sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wrong {
    /// It is not one.
    NoSum,
    /// It has no result.
    Trouble(Trouble),
}

impl From<Trouble> for Wrong {
    fn from(trouble: Trouble) -> Self {
        Self::Trouble(trouble)
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Token {
    Number(Number),
    Plus,
    Minus,
    Times,
    Over,
    Open,
    Close,
}

/// The result of a sum.
///
/// # Errors
///
/// If it is none, or has no result.
pub(super) fn evaluate(text: &str) -> Result<Number, Wrong> {
    let tokens = tokens(text)?;
    let mut reader = Reader {
        tokens: &tokens,
        depth: 0,
    };
    let value = reader.sum()?;
    if reader.tokens.is_empty() {
        Ok(value)
    } else {
        Err(Wrong::NoSum)
    }
}

fn tokens(text: &str) -> Result<Vec<Token>, Wrong> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let (token, length) = match first {
            '+' => (Token::Plus, 1),
            '-' | '−' | '–' => (Token::Minus, first.len_utf8()),
            '*' | '×' | '·' => (Token::Times, first.len_utf8()),
            '/' | '÷' | ':' => (Token::Over, first.len_utf8()),
            '(' => (Token::Open, 1),
            ')' => (Token::Close, 1),
            '0'..='9' | '.' => {
                let length = run(rest, |c| c.is_ascii_digit() || c == '.');
                let number = Number::parse(&rest[..length]).ok_or(Wrong::NoSum)?;
                (Token::Number(number?), length)
            }
            _ => word(rest)?,
        };
        tokens.push(token);
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

/// A word for a sign, and its length.
fn word(text: &str) -> Result<(Token, usize), Wrong> {
    let length = run(text, char::is_alphabetic);
    let after = text[length..].trim_start();
    // "multiplied by" and "divided by" are one sign of two words.
    let by = text.len() - after.len() + 2;
    let has_by = after
        .get(..2)
        .is_some_and(|next| next.eq_ignore_ascii_case("by"))
        && !after[2..].starts_with(char::is_alphabetic);
    match text[..length].to_lowercase().as_str() {
        "plus" | "and" => Ok((Token::Plus, length)),
        "minus" => Ok((Token::Minus, length)),
        "times" | "x" => Ok((Token::Times, length)),
        "over" => Ok((Token::Over, length)),
        "multiplied" if has_by => Ok((Token::Times, by)),
        "divided" if has_by => Ok((Token::Over, by)),
        _ => Err(Wrong::NoSum),
    }
}

/// How many bytes at the beginning are of one kind.
fn run(text: &str, is_one: impl Fn(char) -> bool) -> usize {
    text.find(|c| !is_one(c)).unwrap_or(text.len())
}

struct Reader<'t> {
    tokens: &'t [Token],
    depth: usize,
}

impl Reader<'_> {
    fn take(&mut self, wanted: impl Fn(Token) -> bool) -> Option<Token> {
        let (first, rest) = self.tokens.split_first()?;
        wanted(*first).then(|| {
            self.tokens = rest;
            *first
        })
    }

    fn sum(&mut self) -> Result<Number, Wrong> {
        let mut value = self.product()?;
        while let Some(sign) = self.take(|token| matches!(token, Token::Plus | Token::Minus)) {
            let next = self.product()?;
            value = if sign == Token::Plus {
                value.plus(next)?
            } else {
                value.minus(next)?
            };
        }
        Ok(value)
    }

    fn product(&mut self) -> Result<Number, Wrong> {
        let mut value = self.part()?;
        while let Some(sign) = self.take(|token| matches!(token, Token::Times | Token::Over)) {
            let next = self.part()?;
            value = if sign == Token::Times {
                value.times(next)?
            } else {
                value.divided_by(next)?
            };
        }
        Ok(value)
    }

    fn part(&mut self) -> Result<Number, Wrong> {
        let mut is_negative = false;
        while self.take(|token| token == Token::Minus).is_some() {
            is_negative = !is_negative;
        }
        let value = if self.take(|token| token == Token::Open).is_some() {
            self.depth += 1;
            if self.depth > DEPTH_MAX {
                return Err(Wrong::NoSum);
            }
            let value = self.sum()?;
            self.take(|token| token == Token::Close)
                .ok_or(Wrong::NoSum)?;
            self.depth -= 1;
            value
        } else {
            match self.take(|token| matches!(token, Token::Number(_))) {
                Some(Token::Number(value)) => value,
                _ => return Err(Wrong::NoSum),
            }
        };
        Ok(if is_negative { value.negative() } else { value })
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
            assert_eq!(evaluate(text), Err(Wrong::NoSum), "{text}");
        }
        let deep = format!("{}1{}", "(".repeat(40), ")".repeat(40));
        assert_eq!(evaluate(&deep), Err(Wrong::NoSum));
        assert_eq!(
            evaluate("1/0"),
            Err(Wrong::Trouble(Trouble::DivisionByZero))
        );
    }
}
