//! The users that `ums-agent` looks after. They are a value in the state of the app: the demo has no
//! other place to keep anything.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The users.
pub(super) const USERS: &str = "app:demo.users";
/// How often deleting a user really had an effect.
pub(super) const DELETE_RUNS: &str = "app:demo.delete_runs";
/// How many users there may be.
pub(super) const USERS_MAX: usize = 200;

/// Who is there before anybody changed anything.
const SAMPLE: [&str; 12] = [
    "Ada Lovelace",
    "Alan Turing",
    "Barbara Liskov",
    "Donald Knuth",
    "Edsger Dijkstra",
    "Frances Allen",
    "Grace Hopper",
    "John Backus",
    "Katherine Johnson",
    "Margaret Hamilton",
    "Niklaus Wirth",
    "Radia Perlman",
];

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Users {
    /// Numbers are never given twice, whoever was deleted.
    next_id: u64,
    users: Vec<User>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct User {
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) email: String,
}

impl Users {
    /// The sample.
    pub(super) fn sample() -> Self {
        let mut users = Self {
            next_id: 1,
            users: Vec::new(),
        };
        for name in SAMPLE {
            users.create(name);
        }
        users
    }

    /// From the state; the sample if nothing is there.
    ///
    /// # Errors
    ///
    /// If something else is there, with what to do about it.
    pub(super) fn read(value: Option<&Value>) -> Result<Self, String> {
        match value {
            None | Some(Value::Null) => Ok(Self::sample()),
            Some(value) => Self::deserialize(value).map_err(|_| {
                format!(
                    "What is stored under {USERS} are no users. Delete that key to begin again."
                )
            }),
        }
    }

    /// As it is stored.
    pub(super) fn to_value(&self) -> Value {
        serde_json::to_value(self).expect("texts and numbers are JSON")
    }

    pub(super) fn all(&self) -> &[User] {
        &self.users
    }

    pub(super) fn find(&self, id: u64) -> Option<&User> {
        self.users.iter().find(|user| user.id == id)
    }

    /// By all of the name, whatever the case.
    pub(super) fn find_named(&self, name: &str) -> Option<&User> {
        let name = name.to_lowercase();
        self.users
            .iter()
            .find(|user| user.name.to_lowercase() == name)
    }

    /// Adds a user with the next number.
    pub(super) fn create(&mut self, name: &str) -> &User {
        let local: Vec<String> = name
            .split(|c: char| !c.is_alphanumeric())
            .filter(|part| !part.is_empty())
            .map(str::to_lowercase)
            .collect();
        self.users.push(User {
            id: self.next_id,
            name: name.to_owned(),
            email: format!("{}@example.com", local.join(".")),
        });
        self.next_id += 1;
        self.users.last().expect("it was just added")
    }

    /// Removes a user. None if there is none with the number.
    pub(super) fn remove(&mut self, id: u64) -> Option<User> {
        let at = self.users.iter().position(|user| user.id == id)?;
        Some(self.users.remove(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_twelve_at_first_and_numbers_are_never_given_twice() {
        let mut users = Users::read(None).expect("the sample");
        assert_eq!(users.all().len(), 12);
        let seventh = users.find(7).expect("she is there");
        assert_eq!(seventh.name, "Grace Hopper");
        assert_eq!(seventh.email, "grace.hopper@example.com");
        assert!(users.remove(12).is_some() && users.remove(12).is_none());
        assert_eq!(users.create("Jean Bartik").id, 13);
        assert_eq!(
            users.find_named("jean BARTIK").map(|user| user.id),
            Some(13)
        );
    }

    #[test]
    fn what_is_stored_is_read_back_and_anything_else_is_said() {
        let mut users = Users::sample();
        users.remove(1);
        assert_eq!(Users::read(Some(&users.to_value())), Ok(users));
        let said = Users::read(Some(&"nonsense".into())).expect_err("no users");
        assert!(said.contains("Delete that key"));
    }
}
