//! Exact fractions, so that `0.1 + 0.2` is `0.3`.

use std::fmt;

/// How many decimals are shown of a number without an end.
const DIGITS_MAX: usize = 10;

/// A fraction in lowest terms. The denominator is positive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ExactFraction {
    numerator: i128,
    denominator: i128,
}

/// Why a calculation has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ArithmeticError {
    /// The result does not fit into `i128`.
    TooLarge,
    /// Division by zero.
    DivisionByZero,
}

impl ExactFraction {
    pub(super) const fn whole(value: i128) -> Self {
        Self {
            numerator: value,
            denominator: 1,
        }
    }

    fn new(numerator: i128, denominator: i128) -> Result<Self, ArithmeticError> {
        if denominator == 0 {
            return Err(ArithmeticError::DivisionByZero);
        }
        // `i128::MIN` has no opposite; excluding it keeps the arithmetic simple.
        if numerator == i128::MIN || denominator == i128::MIN {
            return Err(ArithmeticError::TooLarge);
        }
        let divisor = greatest_common_divisor(numerator.abs(), denominator.abs());
        let sign = denominator.signum();
        Ok(Self {
            numerator: sign * numerator / divisor,
            denominator: denominator.abs() / divisor,
        })
    }

    /// Parses digits with at most one point.
    pub(super) fn parse(text: &str) -> Option<Result<Self, ArithmeticError>> {
        let (whole, part) = text.split_once('.').unwrap_or((text, ""));
        let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() && part.is_empty() || !is_digits(whole) || !is_digits(part) {
            return None;
        }
        let digits = format!("{whole}{part}");
        let scale = u32::try_from(part.len()).ok();
        let scale = scale.and_then(|places| 10_i128.checked_pow(places));
        let fraction = digits.parse().ok().zip(scale);
        Some(match fraction {
            Some((numerator, denominator)) => Self::new(numerator, denominator),
            None => Err(ArithmeticError::TooLarge),
        })
    }

    pub(super) fn plus(self, other: Self) -> Result<Self, ArithmeticError> {
        let left = multiply(self.numerator, other.denominator)?;
        let right = multiply(other.numerator, self.denominator)?;
        let sum = left.checked_add(right).ok_or(ArithmeticError::TooLarge)?;
        Self::new(sum, multiply(self.denominator, other.denominator)?)
    }

    pub(super) fn minus(self, other: Self) -> Result<Self, ArithmeticError> {
        self.plus(other.negative())
    }

    pub(super) fn times(self, other: Self) -> Result<Self, ArithmeticError> {
        Self::new(
            multiply(self.numerator, other.numerator)?,
            multiply(self.denominator, other.denominator)?,
        )
    }

    pub(super) fn divided_by(self, other: Self) -> Result<Self, ArithmeticError> {
        Self::new(
            multiply(self.numerator, other.denominator)?,
            multiply(self.denominator, other.numerator)?,
        )
    }

    pub(super) fn negative(self) -> Self {
        Self {
            numerator: -self.numerator,
            ..self
        }
    }

    pub(super) fn is_negative(self) -> bool {
        self.numerator < 0
    }

    /// The exact square root, if it is a fraction. `None` for negative numbers.
    pub(super) fn exact_root(self) -> Option<Self> {
        let root = |value: i128| {
            let value = u128::try_from(value).ok()?;
            let root = value.isqrt();
            (root * root == value).then(|| i128::try_from(root).ok())?
        };
        Some(Self {
            numerator: root(self.numerator)?,
            denominator: root(self.denominator)?,
        })
    }

    /// The nearest `f64`.
    #[expect(clippy::cast_precision_loss, reason = "it is shown as about so much")]
    pub(super) fn about(self) -> f64 {
        self.numerator as f64 / self.denominator as f64
    }

    /// Whether all decimals fit into the limit.
    pub(super) fn is_shown_whole(self) -> bool {
        let mut rest = self.numerator.abs() % self.denominator;
        for _ in 0..DIGITS_MAX {
            if rest == 0 {
                return true;
            }
            let Some(next) = rest.checked_mul(10) else {
                return false;
            };
            rest = next % self.denominator;
        }
        rest == 0
    }
}

impl fmt::Display for ExactFraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_shown_whole() {
            return f.write_str(&approximately(self.about()));
        }
        if self.is_negative() {
            f.write_str("-")?;
        }
        let size = self.numerator.abs();
        write!(f, "{}", size / self.denominator)?;
        let mut rest = size % self.denominator;
        if rest > 0 {
            f.write_str(".")?;
        }
        while rest > 0 {
            // No overflow: `is_shown_whole` made the same product.
            rest *= 10;
            write!(f, "{}", rest / self.denominator)?;
            rest %= self.denominator;
        }
        Ok(())
    }
}

/// A rounded number without trailing zeros.
pub(super) fn approximately(value: f64) -> String {
    let text = format!("{value:.DIGITS_MAX$}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0" } else { text }.to_owned()
}

fn multiply(left: i128, right: i128) -> Result<i128, ArithmeticError> {
    left.checked_mul(right).ok_or(ArithmeticError::TooLarge)
}

fn greatest_common_divisor(mut left: i128, mut right: i128) -> i128 {
    while right != 0 {
        (left, right) = (right, left % right);
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> ExactFraction {
        ExactFraction::parse(text)
            .expect("a number")
            .expect("it fits")
    }

    #[test]
    fn fractions_are_exact_and_shown_as_people_write_them() {
        let sum = number("0.1").plus(number("0.2"));
        assert_eq!(sum.map(|sum| sum.to_string()), Ok("0.3".to_owned()));
        let third = number("1").divided_by(number("3")).expect("it fits");
        assert!(!third.is_shown_whole());
        assert_eq!(third.to_string(), "0.3333333333");
        assert_eq!(third.times(number("3")), Ok(number("1")));
        let eighth = number("1").divided_by(number("8")).expect("it fits");
        assert_eq!(eighth.negative().to_string(), "-0.125");
        assert_eq!(number("007.50").to_string(), "7.5");
    }

    #[test]
    fn what_does_not_fit_is_said_and_never_wraps() {
        let most = ExactFraction::whole(i128::MAX);
        assert_eq!(
            most.plus(ExactFraction::whole(1)),
            Err(ArithmeticError::TooLarge)
        );
        assert_eq!(most.times(most), Err(ArithmeticError::TooLarge));
        assert_eq!(
            most.negative().minus(ExactFraction::whole(1)),
            Err(ArithmeticError::TooLarge)
        );
        assert_eq!(
            ExactFraction::whole(1).divided_by(ExactFraction::whole(0)),
            Err(ArithmeticError::DivisionByZero)
        );
        assert_eq!(
            ExactFraction::parse(&"9".repeat(60)),
            Some(Err(ArithmeticError::TooLarge))
        );
        let tiny = format!("0.{}1", "0".repeat(60));
        assert_eq!(
            ExactFraction::parse(&tiny),
            Some(Err(ArithmeticError::TooLarge))
        );
        assert_eq!(ExactFraction::parse("1.2.3"), None);
        assert_eq!(ExactFraction::parse("."), None);
    }

    #[test]
    fn roots_are_exact_where_there_is_an_exact_one() {
        assert_eq!(number("121").exact_root(), Some(number("11")));
        assert_eq!(number("2.25").exact_root(), Some(number("1.5")));
        assert_eq!(number("2").exact_root(), None);
        assert_eq!(number("4").negative().exact_root(), None);
    }
}
