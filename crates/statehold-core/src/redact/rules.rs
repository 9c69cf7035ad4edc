//! The rules: what secrets look like, by the shapes that their vendors publish.
//!
//! A rule begins at an anchor, a literal text that every secret of its kind contains, and says which characters
//! follow. A matcher walks along the text once for each anchor that it finds; it never goes back, and no shape
//! repeats a choice, so that no text can make it slow.

use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, MatchKind};

/// A class of ASCII characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Set {
    Digit,
    /// `0-9A-Z`
    Upper,
    /// `0-9a-f`
    Hex,
    /// `0-9A-Za-z`
    Alnum,
    /// `0-9A-Za-z_`
    Word,
    /// `0-9A-Za-z_-`
    Url,
    /// `0-9A-Za-z_-.`
    Dotted,
    /// `0-9A-Za-z+/`
    Base64,
    /// `0-9A-Za-z_-.~+/`: a token of HTTP authentication.
    Token,
}

impl Set {
    pub(super) fn has(self, byte: u8) -> bool {
        let is_alnum = byte.is_ascii_alphanumeric();
        match self {
            Self::Digit => byte.is_ascii_digit(),
            Self::Upper => byte.is_ascii_digit() || byte.is_ascii_uppercase(),
            Self::Hex => byte.is_ascii_digit() || matches!(byte, b'a'..=b'f'),
            Self::Alnum => is_alnum,
            Self::Word => is_alnum || byte == b'_',
            Self::Url => is_alnum || matches!(byte, b'_' | b'-'),
            Self::Dotted => is_alnum || matches!(byte, b'_' | b'-' | b'.'),
            Self::Base64 => is_alnum || matches!(byte, b'+' | b'/'),
            Self::Token => is_alnum || b"_-.~+/".contains(&byte),
        }
    }
}

/// A part of a shape.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part {
    /// This text.
    Is(&'static str),
    /// As many characters of a class as there are: at least and at most so many. More of them are no match.
    Run(Set, usize, usize),
}

/// How a rule judges the text around its anchor.
#[derive(Debug, Clone, Copy)]
pub(super) enum Shape {
    /// The anchor and these parts. It begins where neither a word nor a run of its first class goes on.
    Parts(&'static [Part]),
    /// These parts behind the anchor, which stays.
    Behind(&'static [Part]),
    /// These parts behind the anchor, before which are so many characters of a class. Both stay.
    Around(Set, usize, usize, &'static [Part]),
    /// A block of PEM with a private key.
    Pem,
    /// The password between `//user:` and `@`.
    UrlPassword,
    /// A value behind `password=` among other pairs of a connection string.
    PairValue,
    /// A value behind a variable name that ends with the anchor, at the beginning of a line.
    Variable,
    /// A quoted value behind a quoted key that names a secret: JSON in a fence, behind words, or cut off.
    QuotedPair,
    /// Credentials in base64. They have a digit or an upper-case letter behind the first character, so that a word is none.
    Basic,
}

/// A rule.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rule {
    pub(super) id: &'static str,
    pub(super) anchors: &'static [&'static str],
    pub(super) shape: Shape,
    /// Whether the secret has a letter and a digit, so that words of a language do not look like one.
    pub(super) is_mixed: bool,
}

impl Rule {
    /// Whether its matches end where a run ends, however long that is. All its parts are of the class of that run.
    pub(super) fn is_open_ended(&self) -> bool {
        let (Shape::Parts(parts) | Shape::Behind(parts)) = self.shape else {
            return false;
        };
        matches!(parts.last(), Some(Part::Run(_, _, MANY)))
    }
}

const fn rule(id: &'static str, anchors: &'static [&'static str], parts: &'static [Part]) -> Rule {
    Rule {
        id,
        anchors,
        shape: Shape::Parts(parts),
        is_mixed: false,
    }
}

/// A rule whose secrets have letters and digits.
const fn mixed(id: &'static str, anchors: &'static [&'static str], parts: &'static [Part]) -> Rule {
    Rule {
        is_mixed: true,
        ..rule(id, anchors, parts)
    }
}

const fn shaped(id: &'static str, anchors: &'static [&'static str], shape: Shape) -> Rule {
    Rule {
        shape,
        ..rule(id, anchors, &[])
    }
}

/// As many characters as there are. A run that ends at a limit would leave the rest of a secret behind its placeholder,
/// and one that is no match behind a limit would be walked again from each anchor in it.
pub(super) const MANY: usize = usize::MAX - 1;

use Part::{Is, Run};
use Set::{Alnum, Base64, Digit, Dotted, Hex, Token, Upper, Url, Word};

/// The rules, in the order in which they are tried at one anchor.
pub(super) const RULES: &[Rule] = &[
    // Clouds.
    rule(
        "aws-access-key",
        &["AKIA", "ASIA", "ABIA", "ACCA"],
        &[Run(Upper, 16, 16)],
    ),
    Rule {
        shape: Shape::Behind(&[Run(Base64, 40, 40)]),
        ..mixed(
            "aws-secret-key",
            &[
                "aws_secret_access_key=",
                "aws_secret_access_key = ",
                "aws_secret_access_key: ",
                "aws_secret_access_key=\"",
                "aws_secret_access_key='",
                "aws_secret_access_key: \"",
                "AWS_SECRET_ACCESS_KEY=",
                "AWS_SECRET_ACCESS_KEY=\"",
                "AWS_SECRET_ACCESS_KEY='",
                "AWS_SECRET_ACCESS_KEY: ",
                "AWS_SECRET_ACCESS_KEY: \"",
            ],
            &[],
        )
    },
    mixed("aws-bedrock-key", &["ABSK"], &[Run(Base64, 60, MANY)]),
    mixed("google-api-key", &["AIza"], &[Run(Url, 30, 60)]),
    mixed("google-access-token", &["ya29."], &[Run(Dotted, 20, MANY)]),
    mixed("google-refresh-token", &["1//0"], &[Run(Url, 30, 256)]),
    mixed("google-client-secret", &["GOCSPX-"], &[Run(Url, 20, 64)]),
    Rule {
        shape: Shape::Behind(&[Run(Base64, 40, 128)]),
        ..mixed(
            "azure-account-key",
            &["AccountKey=", "SharedAccessKey="],
            &[],
        )
    },
    shaped(
        "azure-client-secret",
        &["Q~"],
        Shape::Around(Dotted, 4, 4, &[Run(Token, 31, 34)]),
    ),
    rule(
        "digitalocean-token",
        &["dop_v1_", "doo_v1_", "dor_v1_"],
        &[Run(Hex, 64, 64)],
    ),
    mixed(
        "cloudflare-origin-key",
        &["v1.0-"],
        &[Run(Hex, 24, 24), Is("-"), Run(Hex, 140, 160)],
    ),
    mixed("heroku-key", &["HRKU-"], &[Run(Url, 30, 128)]),
    mixed(
        "fly-token",
        &["fm1_", "fm2_", "fo1_"],
        &[Run(Base64, 40, MANY)],
    ),
    mixed(
        "netlify-token",
        &["nfp_", "nfc_", "nfo_"],
        &[Run(Alnum, 30, 64)],
    ),
    mixed(
        "vercel-token",
        &["vcp_", "vck_", "vercel_blob_rw_"],
        &[Run(Word, 24, 128)],
    ),
    mixed("supabase-key", &["sbp_", "sb_secret_"], &[Run(Url, 20, 64)]),
    mixed(
        "planetscale-token",
        &["pscale_tkn_", "pscale_pw_", "pscale_oauth_"],
        &[Run(Dotted, 32, 64)],
    ),
    rule("databricks-token", &["dapi"], &[Run(Hex, 32, 32)]),
    mixed("pulumi-token", &["pul-"], &[Run(Hex, 40, 40)]),
    shaped(
        "terraform-token",
        &[".atlasv1."],
        Shape::Around(Alnum, 14, 14, &[Run(Url, 60, 70)]),
    ),
    mixed(
        "vault-token",
        &["hvs.", "hvb.", "hvr."],
        &[Run(Url, 20, 256)],
    ),
    mixed(
        "doppler-token",
        &["dp.pt.", "dp.st.", "dp.sa.", "dp.ct.", "dp.scim."],
        &[Run(Dotted, 40, 64)],
    ),
    rule(
        "age-secret-key",
        &["AGE-SECRET-KEY-1"],
        &[Run(Upper, 58, 58)],
    ),
    mixed("onepassword-token", &["ops_eyJ"], &[Run(Url, 60, MANY)]),
    // Code hosts and package registries.
    mixed(
        "github-token",
        &["ghp_", "gho_", "ghu_", "ghs_", "ghr_"],
        &[Run(Alnum, 20, 255)],
    ),
    mixed(
        "github-fine-grained-token",
        &["github_pat_"],
        &[Run(Word, 20, 255)],
    ),
    mixed(
        "gitlab-token",
        &[
            "glpat-", "gldt-", "glrt-", "glptt-", "glcbt-", "glft-", "glsoat-", "gloas-",
            "glagent-",
        ],
        &[Run(Dotted, 16, 300)],
    ),
    mixed(
        "atlassian-token",
        &["ATATT3", "ATCTT3", "ATBB"],
        &[Run(Dotted, 28, 300)],
    ),
    mixed("npm-token", &["npm_"], &[Run(Alnum, 30, 64)]),
    mixed("pypi-token", &["pypi-"], &[Run(Url, 30, 300)]),
    rule("rubygems-key", &["rubygems_"], &[Run(Hex, 48, 48)]),
    mixed("crates-io-token", &["cio"], &[Run(Alnum, 32, 32)]),
    mixed("nuget-key", &["oy2"], &[Run(Alnum, 43, 43)]),
    mixed(
        "docker-token",
        &["dckr_pat_", "dckr_oat_"],
        &[Run(Url, 20, 64)],
    ),
    mixed("jfrog-key", &["AKCp", "cmVmdGtu"], &[Run(Alnum, 50, 128)]),
    mixed("sourcegraph-token", &["sgp_"], &[Run(Word, 40, 64)]),
    // Payment and commerce.
    mixed(
        "stripe-key",
        &["sk_live_", "sk_test_", "rk_live_", "rk_test_"],
        &[Run(Alnum, 10, 256)],
    ),
    mixed(
        "stripe-webhook-secret",
        &["whsec_"],
        &[Run(Base64, 16, 128)],
    ),
    mixed("square-token", &["sq0atp-", "sq0csp-"], &[Run(Url, 22, 64)]),
    rule(
        "braintree-token",
        &["access_token$production$", "access_token$sandbox$"],
        &[Run(Alnum, 16, 16), Is("$"), Run(Hex, 32, 32)],
    ),
    mixed(
        "shopify-token",
        &["shpat_", "shpca_", "shppa_", "shpss_"],
        &[Run(Alnum, 32, 64)],
    ),
    mixed(
        "plaid-token",
        &["access-production-", "access-sandbox-"],
        &[Run(Url, 36, 36)],
    ),
    mixed(
        "shippo-token",
        &["shippo_live_", "shippo_test_"],
        &[Run(Hex, 40, 40)],
    ),
    mixed("easypost-key", &["EZAK", "EZTK"], &[Run(Alnum, 54, 54)]),
    mixed(
        "flutterwave-key",
        &["FLWSECK-", "FLWSECK_TEST-"],
        &[Run(Alnum, 12, 64)],
    ),
    // Chat, mail and telephony.
    mixed(
        "slack-token",
        &[
            "xoxa-", "xoxb-", "xoxc-", "xoxd-", "xoxe-", "xoxe.", "xoxo-", "xoxp-", "xoxr-",
            "xoxs-",
        ],
        &[Run(Dotted, 10, 512)],
    ),
    mixed("slack-app-token", &["xapp-"], &[Run(Url, 10, 256)]),
    Rule {
        shape: Shape::Behind(&[Run(Token, 20, 128)]),
        ..mixed(
            "slack-webhook",
            &["hooks.slack.com/services/", "hooks.slack.com/workflows/"],
            &[],
        )
    },
    Rule {
        shape: Shape::Behind(&[Run(Digit, 16, 20), Is("/"), Run(Url, 30, 128)]),
        ..mixed(
            "discord-webhook",
            &["discord.com/api/webhooks/", "discordapp.com/api/webhooks/"],
            &[],
        )
    },
    shaped(
        "telegram-bot-token",
        &[":AA"],
        Shape::Around(Digit, 8, 10, &[Run(Url, 33, 33)]),
    ),
    mixed(
        "sendgrid-key",
        &["SG."],
        &[Run(Url, 16, 64), Is("."), Run(Url, 16, 128)],
    ),
    mixed("mailgun-key", &["key-"], &[Run(Hex, 32, 32)]),
    mixed(
        "brevo-key",
        &["xkeysib-", "xsmtpsib-"],
        &[Run(Hex, 64, 64), Is("-"), Run(Alnum, 16, 16)],
    ),
    mixed(
        "resend-key",
        &["re_"],
        &[Run(Alnum, 8, 8), Is("_"), Run(Alnum, 24, 24)],
    ),
    mixed("twilio-key", &["SK"], &[Run(Hex, 32, 32)]),
    mixed("facebook-token", &["EAA"], &[Run(Alnum, 100, 512)]),
    // Language models.
    mixed("anthropic-key", &["sk-ant-"], &[Run(Url, 16, 256)]),
    mixed("openrouter-key", &["sk-or-"], &[Run(Url, 20, 256)]),
    mixed("openai-key", &["sk-"], &[Run(Url, 16, 256)]),
    mixed(
        "huggingface-token",
        &["hf_", "api_org_"],
        &[Run(Alnum, 20, 64)],
    ),
    mixed("replicate-token", &["r8_"], &[Run(Alnum, 30, 64)]),
    mixed("groq-key", &["gsk_"], &[Run(Alnum, 20, 128)]),
    mixed("xai-key", &["xai-"], &[Run(Alnum, 40, 128)]),
    mixed("perplexity-key", &["pplx-"], &[Run(Alnum, 30, 128)]),
    mixed("nvidia-key", &["nvapi-"], &[Run(Url, 40, 128)]),
    mixed("fireworks-key", &["fw_"], &[Run(Alnum, 22, 32)]),
    mixed("pinecone-key", &["pcsk_"], &[Run(Word, 40, 128)]),
    mixed("tavily-key", &["tvly-"], &[Run(Url, 20, 64)]),
    rule("elevenlabs-key", &["sk_"], &[Run(Hex, 48, 48)]),
    mixed(
        "langsmith-key",
        &["lsv2_pt_", "lsv2_sk_"],
        &[Run(Word, 32, 64)],
    ),
    // Watching and working.
    mixed(
        "newrelic-key",
        &["NRAK-", "NRII-", "NRIQ-"],
        &[Run(Url, 27, 40)],
    ),
    mixed(
        "sentry-token",
        &["sntrys_", "sntryu_"],
        &[Run(Token, 40, MANY)],
    ),
    mixed("grafana-token", &["glsa_", "glc_"], &[Run(Word, 32, 512)]),
    rule(
        "dynatrace-token",
        &["dt0c01.", "dt0s01."],
        &[Run(Upper, 24, 24), Is("."), Run(Upper, 64, 64)],
    ),
    mixed("posthog-key", &["phx_"], &[Run(Alnum, 40, 64)]),
    mixed(
        "linear-key",
        &["lin_api_", "lin_oauth_"],
        &[Run(Alnum, 32, 64)],
    ),
    mixed("notion-token", &["ntn_", "secret_"], &[Run(Alnum, 40, 64)]),
    mixed("figma-token", &["figd_", "figdr_"], &[Run(Url, 40, 64)]),
    mixed(
        "postman-key",
        &["PMAK-"],
        &[Run(Hex, 24, 24), Is("-"), Run(Hex, 34, 34)],
    ),
    mixed("contentful-token", &["CFPAT-"], &[Run(Url, 43, 43)]),
    mixed("prefect-key", &["pnu_", "pnb_"], &[Run(Alnum, 36, 36)]),
    mixed("statehold-key", &["shk_", "sht_"], &[Run(Url, 16, MANY)]),
    // Forms that no vendor owns.
    shaped("private-key", &["-----BEGIN "], Shape::Pem),
    mixed(
        "jwt",
        &["eyJ"],
        &[
            Run(Url, 8, MANY),
            Is("."),
            Run(Url, 8, MANY),
            Is("."),
            Run(Dotted, 0, MANY),
        ],
    ),
    Rule {
        shape: Shape::Behind(&[Run(Token, 16, MANY)]),
        ..mixed("bearer-token", &["Bearer ", "bearer ", "BEARER "], &[])
    },
    shaped(
        "basic-credentials",
        &[
            "Authorization: Basic ",
            "Authorization: basic ",
            "AUTHORIZATION: BASIC ",
            "AUTHORIZATION: Basic ",
            "authorization: Basic ",
            "authorization: basic ",
        ],
        Shape::Basic,
    ),
    shaped("url-password", &["://"], Shape::UrlPassword),
    shaped(
        "connection-password",
        &[
            "Password=",
            "password=",
            "PASSWORD=",
            "Pwd=",
            "pwd=",
            "PWD=",
        ],
        Shape::PairValue,
    ),
    shaped(
        "secret-variable",
        &[
            "PASSWORD=",
            "PASSWD=",
            "SECRET=",
            "TOKEN=",
            "API_KEY=",
            "ACCESS_KEY=",
            "PRIVATE_KEY=",
            "SECRET_KEY=",
        ],
        Shape::Variable,
    ),
    shaped(
        BY_KEY,
        &["\":", "\" :", "':", "' :", "\\\":", "\\\" :"],
        Shape::QuotedPair,
    ),
];

/// The rule for values under a key that names a secret.
pub(super) const BY_KEY: &str = "secret-key-name";
/// The longest part of a key that is looked at, in bytes.
pub(super) const KEY_BYTES_MAX: usize = SECRET_KEY_BYTES_MAX;

/// Keys whose values are secrets, in lower case and without separators.
const SECRET_KEYS: &[&str] = &[
    "accesskey",
    "accesstoken",
    "apikey",
    "apisecret",
    "apitoken",
    "appsecret",
    "authorization",
    "authtoken",
    "bearertoken",
    "clientsecret",
    "connectionstring",
    "dbpass",
    "dbpassword",
    "encryptionkey",
    "githubtoken",
    "idtoken",
    "masterkey",
    "openaiapikey",
    "anthropicapikey",
    "passphrase",
    "passwd",
    "password",
    "privatekey",
    "proxyauthorization",
    "refreshtoken",
    "secret",
    "secretaccesskey",
    "secretkey",
    "sessiontoken",
    "setcookie",
    "signingkey",
    "userpassword",
    "webhooksecret",
    "xapikey",
];
/// Ends of keys whose values are secrets, in the same form: `SMTP_PASSWORD`, `stripeSecretKey`.
const SECRET_KEY_ENDS: &[&str] = &[
    "accesskey",
    "accesstoken",
    "apikey",
    "apisecret",
    "authtoken",
    "bottoken",
    "clientsecret",
    "jwtsecret",
    "passphrase",
    "passwd",
    "password",
    "privatekey",
    "refreshtoken",
    "secretaccesskey",
    "secretkey",
    "secretstring",
];
/// Beginnings of keys that say something about a secret and have none.
const ABOUT_SECRETS: &[&str] = &[
    "can", "forgot", "has", "hide", "is", "no", "requires", "reset", "show", "uses",
];
/// The longest key that is looked at, with room for separators, in bytes.
const SECRET_KEY_BYTES_MAX: usize = 64;

/// The kind of value that a key names. Some words name a secret in one program and something harmless in another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SecretName {
    /// Every value is a secret.
    Sure,
    /// `token`: not the word or the number that a language model has read.
    Token,
    /// `cookie`: not the one to eat.
    Cookie,
    /// `pwd`: not the directory.
    Directory,
}

impl SecretName {
    /// Whether a text under the name is a secret.
    pub(super) fn fits(self, value: &str) -> bool {
        let has_both = |text: &str| {
            text.bytes().any(|byte| byte.is_ascii_digit())
                && text.bytes().any(|byte| byte.is_ascii_alphabetic())
        };
        let is_word = || value.contains(char::is_whitespace);
        match self {
            Self::Sure => true,
            Self::Token => !is_word() && (value.len() >= 16 || value.len() >= 6 && has_both(value)),
            Self::Cookie => value.contains('=') || value.len() >= 8 && !is_word(),
            Self::Directory => !value.starts_with(['/', '~', '.', '\\']) && !value.contains(":\\"),
        }
    }
}

/// The kind of secret that a key of a JSON object names, if it names one. Case and separators do not count.
pub(super) fn secret_name(key: &str) -> Option<SecretName> {
    if key.len() > SECRET_KEY_BYTES_MAX {
        return None;
    }
    let mut plain = [0_u8; SECRET_KEY_BYTES_MAX];
    let mut length = 0;
    for byte in key.bytes().filter(|byte| !b"_-. ".contains(byte)) {
        plain[length] = byte.to_ascii_lowercase();
        length += 1;
    }
    let plain = &plain[..length];
    match plain {
        b"token" => return Some(SecretName::Token),
        b"cookie" => return Some(SecretName::Cookie),
        b"pwd" => return Some(SecretName::Directory),
        _ => {}
    }
    if SECRET_KEYS.iter().any(|known| known.as_bytes() == plain) {
        return Some(SecretName::Sure);
    }
    // A path or a sentence is no name of a secret.
    let is_name = plain.iter().all(u8::is_ascii_alphanumeric);
    let ends = |text: &&str| plain.ends_with(text.as_bytes());
    let is_secret = is_name && SECRET_KEY_ENDS.iter().any(ends) && !is_about_secrets(key);
    is_secret.then_some(SecretName::Sure)
}

/// Whether the first word of a key says that its value only tells about a secret: `is_password`, `hasApiKey`.
fn is_about_secrets(key: &str) -> bool {
    let mut before = None;
    let end = key.bytes().position(|byte| {
        let begins_word = |last: u8| last.is_ascii_lowercase() && byte.is_ascii_uppercase();
        let is_end = b"_-. ".contains(&byte) || before.is_some_and(begins_word);
        before = Some(byte);
        is_end
    });
    let first = &key[..end.unwrap_or(key.len())];
    let is_first = |word: &&str| word.eq_ignore_ascii_case(first);
    ABOUT_SECRETS.iter().any(is_first)
}

/// The anchors of all rules, and the rules of each.
pub(super) struct Anchors {
    pub(super) find: AhoCorasick,
    /// By the number of the anchor: its length, and the places of its rules.
    pub(super) rules: Vec<(usize, Vec<usize>)>,
    /// The length of the longest anchor.
    pub(super) bytes_max: usize,
}

pub(super) static ANCHORS: LazyLock<Anchors> = LazyLock::new(|| {
    let mut texts: Vec<&str> = Vec::new();
    for rule in RULES {
        for anchor in rule.anchors {
            if !texts.contains(anchor) {
                texts.push(anchor);
            }
        }
    }
    // A search reports the longest anchor at a place; the rules of the shorter ones that it begins with are tried
    // behind its own.
    texts.sort_by_key(|text| std::cmp::Reverse(text.len()));
    let rules_of = |text: &str| {
        let of = |anchor: &str| {
            let numbered = RULES.iter().enumerate();
            let has = numbered.filter(|(_, rule)| rule.anchors.contains(&anchor));
            has.map(|(at, _)| at).collect::<Vec<_>>()
        };
        (1..=text.len())
            .rev()
            .flat_map(|end| of(&text[..end]))
            .collect()
    };
    let rules = texts
        .iter()
        .map(|text| (text.len(), rules_of(text)))
        .collect();
    let bytes_max = texts.first().map_or(0, |text| text.len());
    let find = AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostFirst)
        .build(&texts)
        .expect("fixed anchors build");
    Anchors {
        find,
        rules,
        bytes_max,
    }
});
