//! The address of a server.

use std::net::IpAddr;

use reqwest::Url;

use crate::exit::Failure;

/// The address of a server, for example `http://127.0.0.1:7717`.
///
/// Invariant: `http` or `https`, with a host, without credentials, query and fragment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerAddress(Url);

impl std::str::FromStr for ServerAddress {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let example = "an address looks like http://127.0.0.1:7717 or https://state.example.com";
        let wrong = |why: &str| Failure::usage(format!("`{text}` {why}")).hint(example);
        if !text.is_empty() && !text.contains("://") {
            let failure = wrong("does not begin with http:// or https://");
            return Err(failure.hint(format!("did you mean http://{text}? {example}")));
        }
        let mut url =
            Url::parse(text).map_err(|error| wrong(&format!("is not an address: {error}")))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(wrong("does not begin with http:// or https://"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(wrong(
                "has a name or a password in it; pass a key with --token",
            ));
        }
        if url.query().is_some() {
            return Err(wrong("has a query"));
        }
        if url.fragment().is_some() {
            return Err(wrong("has a fragment"));
        }
        // The banner of a server shows its API below the address.
        let path = url.path().trim_end_matches('/');
        if let Some(base) = path.strip_suffix("/v1").map(str::to_owned) {
            url.set_path(&base);
        }
        Ok(Self(url))
    }
}

impl ServerAddress {
    /// The address of a resource. Its path must be encoded.
    ///
    /// # Errors
    ///
    /// If parsing would change the path: the segment `..` would lead to another resource.
    pub(super) fn join(&self, path: &str) -> Result<Url, Failure> {
        let text = format!("{self}{path}");
        match Url::parse(&text) {
            Ok(url) if url.as_str() == text => Ok(url),
            _ => Err(Failure::usage(format!(
                "`{path}` cannot be asked of {self}"
            ))),
        }
    }

    pub(super) fn is_https(&self) -> bool {
        self.0.scheme() == "https"
    }

    /// Whether the server can only be on this machine.
    pub(crate) fn is_loopback(&self) -> bool {
        let host = self.0.host_str().unwrap_or_default();
        let ip = host.trim_start_matches('[').trim_end_matches(']').parse();
        host == "localhost" || ip.is_ok_and(|ip: IpAddr| ip.is_loopback())
    }
}

impl std::fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.as_str().trim_end_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> ServerAddress {
        text.parse().expect("an address")
    }

    #[test]
    fn an_address_has_a_host_a_port_and_perhaps_a_base() {
        for (text, shown) in [
            ("http://127.0.0.1:7717", "http://127.0.0.1:7717"),
            ("http://localhost", "http://localhost"),
            ("http://[::1]:7717/", "http://[::1]:7717"),
            ("http://a.example:80/state/", "http://a.example/state"),
            ("https://a.example", "https://a.example"),
            ("http://127.0.0.1:7717/v1", "http://127.0.0.1:7717"),
            ("http://a.example/state/v1/", "http://a.example/state"),
        ] {
            assert_eq!(address(text).to_string(), shown);
        }
    }

    #[track_caller]
    fn refused(text: &str, says: &str) {
        let failure = text.parse::<ServerAddress>().expect_err("not an address");
        let said = format!("{failure} {}", failure.hint.as_deref().unwrap_or_default());
        assert!(said.contains(says), "{said}");
    }

    #[test]
    fn other_addresses_say_what_is_wrong_with_them() {
        refused("127.0.0.1:7717", "did you mean http://127.0.0.1:7717?");
        refused("localhost:7717", "does not begin with http://");
        refused("ftp://a.example", "does not begin with http:// or https://");
        refused("http://", "is not an address");
        refused("http://a.example:99999", "is not an address");
        refused("http://bob:secret@a.example", "--token");
        refused("http://a.example/?token=x", "has a query");
        refused("http://a.example/#x", "has a fragment");
        refused("", "an address looks like");
    }

    #[test]
    fn a_path_stays_as_it_is_behind_the_base() {
        let address = address("https://a.example/state/");
        let joined = |path| address.join(path).map(|url| url.to_string());
        assert_eq!(
            joined("/v1/keys/a%2Fb?q=a%20b").expect("a path"),
            "https://a.example/state/v1/keys/a%2Fb?q=a%20b"
        );
        for path in ["/v1/keys/..", "/v1/keys/./x", "/v1/a b", "/v1/\u{fc}"] {
            joined(path).expect_err(path);
        }
    }

    #[test]
    fn loopback_is_this_machine_only() {
        for (text, is_loopback) in [
            ("http://127.0.0.1:1", true),
            ("https://[::1]:1", true),
            ("http://localhost:1", true),
            ("http://10.0.0.1:1", false),
            ("http://localhost.example:1", false),
        ] {
            assert_eq!(address(text).is_loopback(), is_loopback, "{text}");
        }
    }
}
