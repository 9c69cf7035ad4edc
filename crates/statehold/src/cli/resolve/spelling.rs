//! Parses names that people type, without I/O: a whole id, a part of one, an alias of a session, or
//! a name.

/// The kind of object that an id belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum IdKind {
    Session,
    Task,
    Request,
    Hold,
}

impl IdKind {
    const ALL: [Self; 4] = [Self::Session, Self::Task, Self::Request, Self::Hold];

    pub(in crate::cli) fn prefix(self) -> &'static str {
        match self {
            Self::Session => "ses_",
            Self::Task => "tsk_",
            Self::Request => "req_",
            Self::Hold => "hld_",
        }
    }

    pub(in crate::cli) fn word(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Task => "task",
            Self::Request => "request",
            Self::Hold => "hold",
        }
    }
}

/// A part of an id: its beginning and its end. The kind may be missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IdPart {
    pub(super) kind: Option<IdKind>,
    start: String,
    end: String,
}

/// So many digits may be the end of an id, without dots before them.
const END_DIGITS_MIN: usize = 6;

impl IdPart {
    /// Parses the beginning of an id, or its beginning and its end with dots in between, as tables
    /// print it.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let kind = IdKind::ALL
            .into_iter()
            .find(|kind| text.starts_with(kind.prefix()));
        let digits = kind.map_or(text, |kind| &text[kind.prefix().len()..]);
        let (start, end) = ["…", "...", ".."]
            .into_iter()
            .find_map(|dots| digits.split_once(dots))
            .unwrap_or((digits, ""));
        let length = start.len() + end.len();
        let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let fits = (1..=32).contains(&length) && is_hex(start) && is_hex(end);
        fits.then(|| Self {
            kind,
            start: start.to_ascii_lowercase(),
            end: end.to_ascii_lowercase(),
        })
    }

    /// The whole id, if no digit is missing.
    pub(super) fn whole(&self) -> Option<(IdKind, String)> {
        let kind = self.kind.filter(|_| self.start.len() == 32)?;
        Some((kind, format!("{}{}", kind.prefix(), self.start)))
    }

    pub(super) fn matches(&self, kind: IdKind, id: &str) -> bool {
        let digits = id.strip_prefix(kind.prefix());
        self.kind.is_none_or(|wanted| wanted == kind)
            && digits.is_some_and(|digits| {
                let spans = digits.len() >= self.start.len() + self.end.len()
                    && digits.starts_with(&self.start)
                    && digits.ends_with(&self.end);
                // People copy the end of a short form without its dots.
                let is_end = self.end.is_empty()
                    && self.start.len() >= END_DIGITS_MIN
                    && digits.ends_with(&self.start);
                spans || is_end
            })
    }
}

/// Parses an alias of a session: `T4`, `R8` or `R8.h1`.
pub(super) fn alias(text: &str) -> Option<(IdKind, String)> {
    let is_number = |text: &str| {
        !text.is_empty() && text.len() <= 20 && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    let upper = text.to_ascii_uppercase();
    if let Some(number) = upper.strip_prefix('T') {
        return is_number(number).then_some((IdKind::Task, upper));
    }
    let numbers = upper.strip_prefix('R')?;
    match numbers.split_once(".H") {
        Some((request, hold)) if is_number(request) && is_number(hold) => {
            Some((IdKind::Hold, format!("R{request}.h{hold}")))
        }
        None if is_number(numbers) => Some((IdKind::Request, upper)),
        _ => None,
    }
}

/// Shortens an id for tables. The short form can be typed.
pub(in crate::cli) fn short(id: &str) -> String {
    let Some((kind, digits)) = id.split_once('_') else {
        return id.to_owned();
    };
    if digits.len() != 32 || !digits.is_ascii() {
        return id.to_owned();
    }
    format!("{kind}_{}…{}", &digits[..4], &digits[26..])
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "ses_0198a000000070008000000000a1b2c3";

    #[test]
    fn a_part_of_an_id_may_leave_out_the_kind_the_case_and_the_middle() {
        for text in [
            "ses_0198",
            "0198A",
            "ses_0198…a1b2c3",
            "…a1b2c3",
            "..A1B2C3",
            "0198...c3",
            ID,
        ] {
            let part = IdPart::parse(text).expect("a part");
            assert!(part.matches(IdKind::Session, ID), "{text}");
        }
        for text in ["tsk_0198", "0199", "…a1b2c4", "0198a…0198"] {
            let part = IdPart::parse(text).expect("a part");
            assert!(!part.matches(IdKind::Session, ID), "{text}");
        }
        for text in ["", "ses_", "…", "weekly report", "../x", "ses_0198…a…b"] {
            assert_eq!(IdPart::parse(text), None, "{text}");
        }
    }

    #[test]
    fn an_id_is_whole_only_with_its_kind() {
        let whole = |text: &str| IdPart::parse(text).expect("a part").whole();
        assert_eq!(whole(ID), Some((IdKind::Session, ID.to_owned())));
        assert_eq!(whole(&ID[4..]), None);
        assert_eq!(whole("ses_0198"), None);
    }

    #[test]
    fn an_alias_says_what_it_is_of() {
        for (text, kind, exact) in [
            ("T4", IdKind::Task, "T4"),
            ("r8", IdKind::Request, "R8"),
            ("R8.h1", IdKind::Hold, "R8.h1"),
            ("r8.H1", IdKind::Hold, "R8.h1"),
        ] {
            assert_eq!(alias(text), Some((kind, exact.to_owned())));
        }
        for text in ["", "T", "R", "R.h1", "R8.h", "R8.x1", "X1", "T-1", "R8h1"] {
            assert_eq!(alias(text), None, "{text}");
        }
    }

    #[test]
    fn what_a_table_shows_can_be_typed() {
        assert_eq!(short(ID), "ses_0198…a1b2c3");
        let part = IdPart::parse(&short(ID)).expect("a part");
        assert!(part.matches(IdKind::Session, ID));
        assert_eq!(short("local"), "local");
        assert_eq!(short("ses_1"), "ses_1");
    }
}
