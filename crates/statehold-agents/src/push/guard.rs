//! Which addresses may be called. The server can reach networks that its callers cannot; callers must
//! not use it to reach them (SSRF).
//!
//! Only the resolved IP address counts, checked at connect time. Spellings of an address and changes of
//! a DNS name therefore do not matter.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::Uri;

/// Why an address may not be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// It is not a valid URL of the allowed form.
    #[error("the address is https://host[:port]/path, without user and fragment")]
    Malformed,
    /// It is not encrypted.
    #[error("the address must begin with https://, unless `push.allow` names its host and port")]
    NotSecret,
    /// It is in a network that is not public.
    #[error("the address is not a public one; `push.allow` can name its host and port")]
    Private,
}

/// Address policy of a server.
#[derive(Debug, Clone, Default)]
pub struct Guard {
    allows_all: bool,
    allowed: BTreeSet<(String, u16)>,
}

impl Guard {
    /// Allows every address, as on a development server.
    pub fn open() -> Self {
        Self {
            allows_all: true,
            allowed: BTreeSet::new(),
        }
    }

    /// Allows public addresses, and those listed as `host:port`.
    ///
    /// # Errors
    ///
    /// The first entry that is not `host:port`.
    pub fn new(allow: &[String]) -> Result<Self, String> {
        let mut allowed = BTreeSet::new();
        for text in allow {
            let parts = text.rsplit_once(':');
            let parts = parts.and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
            let Some((host, port)) = parts.filter(|(host, _)| !host.is_empty()) else {
                return Err(text.clone());
            };
            allowed.insert((host.to_ascii_lowercase(), port));
        }
        Ok(Self {
            allows_all: false,
            allowed,
        })
    }

    /// Parses a URL and checks what its text reveals.
    ///
    /// # Errors
    ///
    /// Why it may not be called.
    pub fn parse(&self, url: &str) -> Result<PushTarget, AddressError> {
        let is_plain = url.bytes().all(|b| b.is_ascii_graphic()) && !url.contains('#');
        let uri: Uri = url.parse().map_err(|_| AddressError::Malformed)?;
        let is_secret = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(AddressError::Malformed),
        };
        let authority = uri.authority().ok_or(AddressError::Malformed)?;
        if !is_plain || authority.as_str().contains('@') || authority.host().is_empty() {
            return Err(AddressError::Malformed);
        }
        let after = authority.as_str().strip_prefix(authority.host());
        let port = match after.ok_or(AddressError::Malformed)? {
            "" if is_secret => 443,
            "" => 80,
            text => {
                let number = text.strip_prefix(':').and_then(|text| text.parse().ok());
                number.ok_or(AddressError::Malformed)?
            }
        };
        let host = authority.host().to_ascii_lowercase();
        let is_allowed = self.allows_all || self.allowed.contains(&(host.clone(), port));
        if !is_secret && !is_allowed {
            return Err(AddressError::NotSecret);
        }
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let target = PushTarget {
            host: bare.to_owned(),
            port,
            is_secret,
            is_allowed,
            authority: authority.to_string(),
            path: uri
                .path_and_query()
                .map_or("/", |path| path.as_str())
                .to_owned(),
        };
        // Check an IP literal now; a name is checked when it is resolved.
        if let Ok(ip) = bare.parse::<IpAddr>() {
            target.require_allowed(ip)?;
        }
        Ok(target)
    }
}

/// A parsed URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushTarget {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) is_secret: bool,
    is_allowed: bool,
    pub(super) authority: String,
    pub(super) path: String,
}

impl PushTarget {
    /// Checks an address before connecting.
    pub(super) fn require_allowed(&self, ip: IpAddr) -> Result<(), AddressError> {
        if self.is_allowed || is_public(ip) {
            Ok(())
        } else {
            Err(AddressError::Private)
        }
    }
}

/// Whether an address belongs to the public internet.
fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(mapped) => is_public_v4(mapped),
            None => is_public_v6(ip),
        },
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    let is_special = match (a, b, c) {
        // Private, and carrier-grade NAT.
        (172, b, _) => (16..32).contains(&b),
        (100, b, _) => (64..128).contains(&b),
        // This network, private, loopback, multicast, reserved; link-local; private; protocol
        // assignments; 6to4 relays; benchmarking; documentation.
        (0 | 10 | 127 | 224..=255, _, _)
        | (169, 254, _)
        | (192, 168, _)
        | (192, 0, 0 | 2)
        | (192, 88, 99)
        | (198, 18 | 19, _)
        | (198, 51, 100)
        | (203, 0, 113) => true,
        _ => false,
    };
    !is_special
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    let [a, b, ..] = ip.segments();
    // Only 2000::/3 is allocated. Excluded in it: protocol assignments and tunnels that carry an IPv4
    // address (2001::/23, 2002::/16), and documentation.
    let is_unicast = a & 0xe000 == 0x2000;
    let is_special =
        a == 0x2001 && (b < 0x0200 || b == 0x0db8) || a == 0x2002 || a == 0x3fff && b < 0x1000;
    is_unicast && !is_special
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str) -> Option<AddressError> {
        Guard::default().parse(url).err()
    }

    #[test]
    fn public_addresses_pass() {
        for url in [
            "https://worker.example/resume?x=1",
            "https://worker.example:8443/",
            "https://8.8.8.8/",
            "https://[2606:4700::1111]/",
            "https://172.32.0.1/",
            "https://100.128.0.1/",
        ] {
            assert_eq!(refused(url), None, "{url}");
        }
    }

    #[test]
    fn addresses_of_other_networks_are_refused() {
        for host in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "192.0.0.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "[::1]",
            "[::]",
            "[fe80::1]",
            "[fc00::1]",
            "[fd12::1]",
            "[ff02::1]",
            "[::ffff:127.0.0.1]",
            "[::ffff:7f00:1]",
            "[::127.0.0.1]",
            "[64:ff9b::7f00:1]",
            "[2002:7f00:1::]",
            "[2001:0:1::1]",
            "[2001:db8::1]",
            "[100::1]",
        ] {
            let url = format!("https://{host}/");
            assert_eq!(refused(&url), Some(AddressError::Private), "{url}");
        }
    }

    #[test]
    fn malformed_urls_are_refused() {
        for url in [
            "",
            "worker.example",
            "/resume",
            "file:///etc/passwd",
            "ftp://worker.example/",
            "https://",
            "https:///x",
            "https://a@worker.example/",
            "https://worker.example/#x",
            "https://worker.example:99999/",
            "gopher://worker.example/",
            "https://a b/",
        ] {
            assert_eq!(refused(url), Some(AddressError::Malformed), "{url}");
        }
        let plain = refused("http://worker.example/");
        assert_eq!(plain, Some(AddressError::NotSecret));
    }

    #[test]
    fn listed_hosts_and_ports_pass() {
        let allow = [
            "127.0.0.1:9000".to_owned(),
            "Inner:80".to_owned(),
            "[::1]:9".to_owned(),
        ];
        let guard = Guard::new(&allow).expect("they have ports");
        for url in [
            "http://127.0.0.1:9000/",
            "https://127.0.0.1:9000/",
            "http://inner/",
            "http://[::1]:9/",
        ] {
            let target = guard.parse(url).expect("it is allowed");
            assert_eq!(
                target.require_allowed(IpAddr::V4(Ipv4Addr::LOCALHOST)),
                Ok(()),
                "{url}"
            );
        }
        for url in ["https://127.0.0.1:9001/", "https://127.0.0.1/"] {
            assert_eq!(guard.parse(url), Err(AddressError::Private), "{url}");
        }
        assert_eq!(
            Guard::new(&["inner".to_owned()]).err().as_deref(),
            Some("inner")
        );
    }
}
