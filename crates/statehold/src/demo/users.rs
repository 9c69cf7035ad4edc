//! The users of `ums-agent`: one value in the state of the app. The demo stores nothing elsewhere.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The state key of the users.
pub(super) const USERS: &str = "app:demo.users";
/// The state key that counts deletions.
pub(super) const DELETE_RUNS: &str = "app:demo.delete_runs";
/// The most users.
pub(super) const USERS_MAX: usize = 200;

/// The users before the first change.
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
pub(super) struct DemoUsers {
    /// Ids are never reused, also after a deletion.
    next_id: u64,
    users: Vec<DemoUser>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DemoUser {
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) email: String,
}

impl DemoUsers {
    /// The sample users.
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

    /// Reads the users from state; the sample if there are none.
    ///
    /// # Errors
    ///
    /// If the value has another format. The error says how to start over.
    pub(super) fn read(value: Option<&Value>) -> Result<Self, String> {
        match value {
            None | Some(Value::Null) => Ok(Self::sample()),
            Some(value) => Self::deserialize(value).map_err(|_| {
                format!(
                    "The value of {USERS} is not a list of users. Delete that key to start over."
                )
            }),
        }
    }

    /// The value to store.
    pub(super) fn to_value(&self) -> Value {
        serde_json::to_value(self).expect("texts and numbers are JSON")
    }

    pub(super) fn all(&self) -> &[DemoUser] {
        &self.users
    }

    pub(super) fn find(&self, id: u64) -> Option<&DemoUser> {
        self.users.iter().find(|user| user.id == id)
    }

    /// Finds a user by the whole name, ignoring case.
    pub(super) fn find_named(&self, name: &str) -> Option<&DemoUser> {
        let name = name.to_lowercase();
        self.users
            .iter()
            .find(|user| user.name.to_lowercase() == name)
    }

    /// Adds a user with the next id.
    pub(super) fn create(&mut self, name: &str) -> &DemoUser {
        let local: Vec<String> = name
            .split(|c: char| !c.is_alphanumeric())
            .filter(|part| !part.is_empty())
            .map(str::to_lowercase)
            .collect();
        self.users.push(DemoUser {
            id: self.next_id,
            name: name.to_owned(),
            email: format!("{}@example.com", local.join(".")),
        });
        self.next_id += 1;
        self.users.last().expect("it was just added")
    }

    /// Removes a user. `None` if the id is unknown.
    pub(super) fn remove(&mut self, id: u64) -> Option<DemoUser> {
        let at = self.users.iter().position(|user| user.id == id)?;
        Some(self.users.remove(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_twelve_at_first_and_numbers_are_never_given_twice() {
        let mut users = DemoUsers::read(None).expect("the sample");
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
        let mut users = DemoUsers::sample();
        users.remove(1);
        assert_eq!(DemoUsers::read(Some(&users.to_value())), Ok(users));
        let said = DemoUsers::read(Some(&"nonsense".into())).expect_err("no users");
        assert!(said.contains("Delete that key"));
    }
}
