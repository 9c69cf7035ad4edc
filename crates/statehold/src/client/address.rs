//! Where a server is.

use hyper::Uri;

use crate::exit::Failure;

/// The address of a server, for example `http://127.0.0.1:7717`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    /// Without brackets, as a resolver wants it.
    host: String,
    port: u16,
    /// What comes before every path, without a slash at its end.
    base: String,
}

impl std::str::FromStr for Address {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let example = "an address looks like http://127.0.0.1:7717";
        let wrong = |why: &str| Failure::usage(format!("`{text}` {why}")).hint(example);
        let uri: Uri = text.parse().map_err(|_| wrong("is not an address"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err(Failure::usage(format!(
                    "`{text}` cannot be called: this program does not speak TLS yet"
                ))
                .hint("TLS ends at a proxy for now: name the http:// address behind it"));
            }
            _ => return Err(wrong("does not begin with http://")),
        }
        let authority = uri.authority().ok_or_else(|| wrong("names no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong(
                "has a name or a password in it; pass a key with --token",
            ));
        }
        if uri.query().is_some() {
            return Err(wrong("has a query"));
        }
        let host = authority.host();
        let host = host.strip_prefix('[').unwrap_or(host);
        let host = host.strip_suffix(']').unwrap_or(host);
        if host.is_empty() {
            return Err(wrong("names no host"));
        }
        Ok(Self {
            host: host.to_owned(),
            port: authority.port_u16().unwrap_or(80),
            base: uri.path().trim_end_matches('/').to_owned(),
        })
    }
}

impl Address {
    pub(super) fn host_and_port(&self) -> (&str, u16) {
        (&self.host, self.port)
    }

    pub(super) fn host_header(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    pub(super) fn path(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// Whether nobody but this machine can be meant.
    pub(crate) fn is_loopback(&self) -> bool {
        self.host == "localhost"
            || self
                .host
                .parse()
                .is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "http://{}{}", self.host_header(), self.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, shown: &str) {
        let address: Address = text.parse().expect("an address");
        assert_eq!(address.to_string(), shown);
    }

    #[test]
    fn an_address_has_a_host_a_port_and_perhaps_a_base() {
        check("http://127.0.0.1:7717", "http://127.0.0.1:7717");
        check("http://localhost", "http://localhost:80");
        check("http://[::1]:7717/", "http://[::1]:7717");
        check("http://a.example/state/", "http://a.example:80/state");
    }

    #[track_caller]
    fn refused(text: &str, says: &str) {
        let failure = text.parse::<Address>().expect_err("not an address");
        let said = format!("{failure} {}", failure.hint.as_deref().unwrap_or_default());
        assert!(said.contains(says), "{said}");
    }

    #[test]
    fn other_addresses_say_what_is_wrong_with_them() {
        refused("https://a.example", "TLS ends at a proxy");
        refused("127.0.0.1:7717", "http://127.0.0.1:7717");
        refused("ftp://a.example", "does not begin with http://");
        refused("http://bob:secret@a.example", "--token");
        refused("http://a.example/?token=x", "has a query");
        refused("", "an address looks like");
    }

    #[test]
    fn loopback_is_this_machine_only() {
        let is_loopback = |text: &str| text.parse::<Address>().expect("one").is_loopback();
        assert!(is_loopback("http://127.0.0.1:1"));
        assert!(is_loopback("http://[::1]:1"));
        assert!(is_loopback("http://localhost:1"));
        assert!(!is_loopback("http://10.0.0.1:1"));
        assert!(!is_loopback("http://localhost.example:1"));
    }
}
