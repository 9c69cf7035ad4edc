//! Resource names and paths: a project and a location are an app.

use statehold_core::ids::SessionId;
use statehold_core::name::Name;

use crate::http::problem::Problem;

/// A version of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ApiVersion {
    V1,
    V1Beta,
}

impl ApiVersion {
    /// The address of a message type.
    pub(super) fn type_url(self, message: &str) -> String {
        let version = match self {
            Self::V1 => "v1",
            Self::V1Beta => "v1beta",
        };
        format!("type.googleapis.com/google.cloud.geminidataanalytics.{version}.{message}")
    }
}

/// A project and a location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) version: ApiVersion,
    project: String,
    location: String,
    /// The app of its sessions.
    pub(super) app: Name,
}

/// The resource that a path names below a place, with the custom method behind a colon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) place: Place,
    /// The segments below the place: collections and ids in turn.
    pub(super) segments: Vec<String>,
    /// `chat` of `…:chat`.
    pub(super) verb: Option<String>,
}

impl Place {
    fn of(version: ApiVersion, project: &str, location: &str) -> Option<Self> {
        // Locations have no dots, so two places are never one app.
        let is_location = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if location.is_empty() || !location.bytes().all(is_location) {
            return None;
        }
        Some(Self {
            version,
            project: project.to_owned(),
            location: location.to_owned(),
            app: format!("{project}.{location}").parse().ok()?,
        })
    }

    /// The name of a resource of the place.
    pub(super) fn name(&self, collection: &str, id: &str) -> String {
        let Self {
            project, location, ..
        } = self;
        format!("projects/{project}/locations/{location}/{collection}/{id}")
    }

    /// The id in the full name of a resource of this place.
    pub(super) fn id_in<'a>(&self, name: &'a str, collection: &str) -> Result<&'a str, Problem> {
        let prefix = self.name(collection, "");
        let id = name.strip_prefix(&prefix);
        let id = id.filter(|id| !id.is_empty() && !id.contains('/'));
        // A name of another place is one of a resource that this call does not reach.
        id.ok_or_else(|| {
            let detail = format!("`{}` is not a name below `{prefix}`", clip(name));
            Problem::invalid(detail)
        })
    }
}

impl Target {
    /// Reads the path of a call. None if it is none of this API.
    pub(super) fn of(path: &str) -> Option<Self> {
        let mut segments = path.strip_prefix('/')?.split('/');
        let version = match segments.next()? {
            "v1" => ApiVersion::V1,
            "v1beta" => ApiVersion::V1Beta,
            _ => return None,
        };
        let (projects, project) = (segments.next()?, segments.next()?);
        let (locations, location) = (segments.next()?, segments.next()?);
        if projects != "projects" || locations != "locations" {
            return None;
        }
        let mut rest: Vec<&str> = segments.collect();
        let last = rest.last().copied().unwrap_or(location);
        let (last, verb) = match last.split_once(':') {
            Some((last, verb)) => (last, Some(verb.to_owned())),
            None => (last, None),
        };
        let location = match rest.last_mut() {
            Some(end) => {
                *end = last;
                location
            }
            None => last,
        };
        Some(Self {
            place: Place::of(version, project, location)?,
            segments: rest.into_iter().map(str::to_owned).collect(),
            verb,
        })
    }
}

/// The id of a conversation: the name that its client gave it, or its session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ConversationId {
    Named(String),
    Session(SessionId),
}

/// The beginning of a conversation id that the server made. Ids of this API have no underscore.
const SESSION_PREFIX: &str = "ses-";

impl ConversationId {
    pub(super) fn of(text: &str) -> Self {
        let session = text.strip_prefix(SESSION_PREFIX);
        let session = session.and_then(|id| format!("ses_{id}").parse().ok());
        session.map_or_else(|| Self::Named(text.to_owned()), Self::Session)
    }

    /// The id of a session without a name.
    pub(super) fn text_of(session: SessionId) -> String {
        session.to_string().replacen("ses_", SESSION_PREFIX, 1)
    }
}

/// Whether a text may be the id of a new conversation or agent: a lower-case letter, then at most 62 letters, digits
/// and hyphens, no hyphen last. Ids that the server makes are its own.
pub(super) fn is_new_id(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let starts_well = text.starts_with(|first: char| first.is_ascii_lowercase());
    text.len() <= 63
        && starts_well
        && text.bytes().all(is_plain)
        && !text.ends_with('-')
        && matches!(ConversationId::of(text), ConversationId::Named(_))
}

/// The start of a text of the caller, for an error.
pub(super) fn clip(text: &str) -> String {
    text.chars().take(128).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_place_with_resources_and_a_verb() {
        let read = |path: &str| {
            let target = Target::of(path)?;
            Some((
                target.place.app.to_string(),
                target.segments.join("/"),
                target.verb,
            ))
        };
        let found = |app: &str, rest: &str, verb: Option<&str>| {
            Some((app.to_owned(), rest.to_owned(), verb.map(str::to_owned)))
        };
        assert_eq!(
            read("/v1/projects/p/locations/global:chat"),
            found("p.global", "", Some("chat"))
        );
        assert_eq!(
            read("/v1beta/projects/a.b/locations/us/conversations/c/messages"),
            found("a.b.us", "conversations/c/messages", None)
        );
        assert_eq!(
            read("/v1/projects/p/locations/l/dataAgents:createSync"),
            found("p.l", "dataAgents", Some("createSync"))
        );
        assert_eq!(
            read("/v1/projects/p/locations/l/dataAgents/d:updateSync"),
            found("p.l", "dataAgents/d", Some("updateSync"))
        );
        for other in [
            "/v1/projects/p",
            "/v2/projects/p/locations/l",
            "/v1/projects/p/locations/b.c/conversations",
            "/v1/projects//locations/l",
        ] {
            assert_eq!(read(other), None, "{other}");
        }
    }

    #[test]
    fn ids_of_new_conversations_follow_the_rules_of_the_api() {
        for good in ["a", "my-conversation-1", "ses-1"] {
            assert!(is_new_id(good), "{good}");
        }
        let own = "ses-01980000000070008000000000000000";
        for bad in ["", "A", "1a", "a_b", "a-", "ä", own, &"a".repeat(64)] {
            assert!(!is_new_id(bad), "{bad}");
        }
    }
}
