//! Secrets of every rule, made up from parts so that no file contains one, and texts that look like secrets and are
//! none.

mod corpus;

use serde_json::{Value, json};

use super::*;
use corpus::{harmless, secrets};

fn redactor() -> Redactor {
    Redactor::default()
}

fn with(patterns: &[(&str, &str)]) -> Redactor {
    let compiled = patterns.iter().map(|(name, pattern)| {
        let name = name.parse().expect("a name");
        Pattern::new(&name, pattern).expect("a pattern")
    });
    Redactor::new(compiled.collect())
}

fn shown(json: &Value) -> (Value, Vec<(String, String)>) {
    match redactor().json(&json.to_string(), &[]) {
        None => (json.clone(), Vec::new()),
        Some(redacted) => {
            let found = redacted.findings.into_iter();
            let found = found.map(|finding| (finding.path, finding.rule.to_string()));
            let value = serde_json::from_str(&redacted.text).expect("it stays JSON");
            (value, found.collect())
        }
    }
}

fn at(path: &str, rule: &str) -> (String, String) {
    (path.to_owned(), rule.to_owned())
}

#[test]
fn every_rule_finds_its_secret_in_prose_and_at_the_ends_of_a_text() {
    let mut seen = std::collections::BTreeSet::new();
    for (rule, before, secret, after) in secrets() {
        seen.insert(rule);
        let whole = format!("{before}{secret}{after}");
        for text in [
            whole.clone(),
            format!("the value is\n{whole}\nand that is all"),
        ] {
            let found = redactor().text(&text);
            let found = found.unwrap_or_else(|| panic!("{rule} finds nothing in {text:?}"));
            assert!(!found.text.contains(&secret), "{rule}: {}", found.text);
            assert!(
                found.text.contains(&placeholder(rule)),
                "{rule}: {:?}",
                found.findings
            );
        }
    }
    let missing: Vec<_> = rule_ids().filter(|id| !seen.contains(id)).collect();
    assert!(missing.is_empty(), "no secret for {missing:?}");
    assert!(seen.len() >= 60, "{} formats", seen.len());
}

#[test]
fn what_is_redacted_once_is_not_redacted_again() {
    for (rule, before, secret, after) in secrets() {
        let once = redactor().text(&format!("{before}{secret}{after}"));
        let once = once.expect("a secret").text;
        assert_eq!(redactor().text(&once), None, "{rule}: {once}");
    }
    let (once, _) = shown(&json!({"password": "a b", "list": [{"token": {"x": 1}}]}));
    assert_eq!(shown(&once), (once.clone(), vec![]));
}

#[test]
fn harmless_texts_stay_as_they_are() {
    let (mut bytes, mut wrong) = (0, Vec::new());
    let texts = harmless();
    let count = texts.len();
    for text in texts {
        bytes += text.len();
        if let Some(found) = redactor().text(&text) {
            wrong.push((
                found.findings,
                found.text.chars().take(120).collect::<String>(),
            ));
        }
    }
    println!(
        "{} of {count} harmless texts ({bytes} bytes) were redacted",
        wrong.len()
    );
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn json_stays_the_text_that_it_was_except_for_its_secrets() {
    let key = format!("gh{}_{}", "p", "a1B2".repeat(9));
    let json = format!(
        r#" {{"n": 1.50e+3 ,"big":123456789012345678901, "t" : "use {key}\u0021" ,"é":[ ] }}"#
    );
    let found = redactor().json(&json, &[]).expect("a secret");
    let shown = r#" {"n": 1.50e+3 ,"big":123456789012345678901, "t" : "use [redacted:github-token]!" ,"é":[ ] }"#;
    assert_eq!(found.text, shown);
    assert_eq!(found.findings.len(), 1);
    assert_eq!(
        (
            found.findings[0].path.as_str(),
            found.findings[0].rule.as_str()
        ),
        ("/t", "github-token")
    );
}

#[test]
fn an_escaped_secret_is_found() {
    let key = format!("gh{}_{}", "p", "a1B2".repeat(9));
    let escaped = key
        .bytes()
        .fold(String::new(), |text, byte| text + &format!("\\u{byte:04x}"));
    let found = redactor().json(&format!(r#"["{escaped}"]"#), &[]);
    assert_eq!(
        found.expect("a secret").text,
        r#"["[redacted:github-token]"]"#
    );
}

#[test]
fn keys_name_secrets_in_any_spelling() {
    let (value, found) = shown(&json!({
        "api_key": "x", "Client-Secret": {"a": 1}, "dbPassword": ["p"], "PASSPHRASE": 5,
        "password": null, "token": false, "secret": "", "max_tokens": 5, "next_page_token": "x", "tokens": ["a"],
        "a/b": [{"api.token": "y"}],
    }));
    let hidden = "[redacted:secret-key-name]";
    assert_eq!(
        value,
        json!({
            "api_key": hidden, "Client-Secret": hidden, "dbPassword": hidden, "PASSPHRASE": hidden,
            "password": null, "token": false, "secret": "", "max_tokens": 5, "next_page_token": "x", "tokens": ["a"],
            "a/b": [{"api.token": hidden}],
        })
    );
    let paths: Vec<&str> = found.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "/api_key",
            "/Client-Secret",
            "/dbPassword",
            "/PASSPHRASE",
            "/a~1b/0/api.token"
        ]
    );
}

#[test]
fn a_schema_may_have_a_property_that_is_called_password() {
    let schema = json!({"type": "object", "required": ["password"],
                        "properties": {"password": {"type": "string", "description": "choose one"}}});
    assert_eq!(shown(&schema), (schema.clone(), vec![]));
    let (value, found) = shown(&json!({"properties": {"password": "hunter2"}}));
    assert_eq!(
        value["properties"]["password"],
        "[redacted:secret-key-name]"
    );
    assert_eq!(found, [at("/properties/password", "secret-key-name")]);
}

#[test]
fn json_inside_a_text_is_read_as_json() {
    let inner = json!({"password": "hunter2", "n": 1}).to_string();
    let outer = json!({"arguments": inner, "text": json!([{"deep": inner}]).to_string()});
    let (value, found) = shown(&outer);
    assert_eq!(
        value["arguments"],
        r#"{"password":"[redacted:secret-key-name]","n":1}"#
    );
    assert!(!value.to_string().contains("hunter2"), "{value}");
    assert_eq!(
        found,
        [
            at("/arguments", "secret-key-name"),
            at("/text", "secret-key-name")
        ]
    );
}

#[test]
fn names_of_members_are_redacted_too_and_stay_apart() {
    let key = |n: u8| format!("gh{}_{}7", "p", char::from(b'a' + n).to_string().repeat(30));
    let (value, found) = shown(&json!({key(0): 1, key(1): 2, "[redacted:github-token]": 3}));
    let hidden = "[redacted:github-token]";
    assert_eq!(
        value,
        json!({hidden: 1, format!("{hidden}+2"): 2, format!("{hidden}+3"): 3})
    );
    assert_eq!(found.len(), 2);
    assert_eq!(found[0].0, format!("/{hidden}"));
    // A name may also look like one that another name has become.
    let (value, _) = shown(&json!({key(0): 1, "[redacted:github-token]+2": 2, key(1): 3}));
    let members = value.as_object().expect("an object");
    assert_eq!(members.len(), 3, "{value}");
}

#[test]
fn kept_places_stay_whatever_they_have() {
    let key = format!("gh{}_{}", "p", "a1B2".repeat(9));
    let json =
        json!({"call_id": key, "state": {"password": "x", "deep": [key]}, "text": key}).to_string();
    let found = redactor()
        .json(&json, &["/call_id", "/state"])
        .expect("a secret");
    let value: Value = serde_json::from_str(&found.text).expect("JSON");
    assert_eq!(
        value,
        json!({"call_id": key, "state": {"password": "x", "deep": [key]},
                             "text": "[redacted:github-token]"})
    );
    assert_eq!(found.findings.len(), 1);
}

#[test]
fn the_value_of_a_key_that_names_a_secret_is_one_if_it_is_a_text() {
    let value = |key: &str, json: &str| redactor().value_of(key, json).map(|found| found.text);
    assert_eq!(
        value("api_key", r#""x""#).as_deref(),
        Some(r#""[redacted:secret-key-name]""#)
    );
    assert_eq!(value("token", "5"), None);
    assert_eq!(value("token", r#"{"count":5}"#), None);
    assert_eq!(value("theme", r#""x""#), None);
    let found = value("any", r#"{"password":"x"}"#);
    assert_eq!(
        found.as_deref(),
        Some(r#"{"password":"[redacted:secret-key-name]"}"#)
    );
}

#[test]
fn passwords_in_addresses_go_and_the_rest_of_the_address_stays() {
    let text = |text: &str| redactor().text(text).map(|found| found.text);
    let hidden = "[redacted:url-password]";
    for (scheme, rest) in [
        ("postgres", "db:5432/x?a=b"),
        ("https", "host/path@v1"),
        ("redis", "h"),
    ] {
        let found = text(&format!("see {scheme}://bob:hun@ter2@{rest} now"));
        assert_eq!(
            found,
            Some(format!("see {scheme}://bob:{hidden}@{rest} now"))
        );
    }
    for plain in [
        "http://host:80/a@b:c",
        "http://me@host/",
        "git@github.com:o/r.git",
        "postgres://${USER}:${PASSWORD}@db/x",
        "mysql://user:<password>@db",
        "https://user:***@h/",
    ] {
        assert_eq!(text(plain), None, "{plain}");
    }
}

#[test]
fn a_private_key_goes_to_its_end_or_to_the_end_of_the_text() {
    let (begin, end) = (
        ["-----BEGIN ", "RSA PRIVATE KEY-----"].concat(),
        "-----END RSA PRIVATE KEY-----",
    );
    let text = |text: &str| redactor().text(text).map(|found| found.text);
    let whole = format!("a\n{begin}\nMIIB\nxyz=\n{end}\nrest");
    assert_eq!(
        text(&whole).as_deref(),
        Some("a\n[redacted:private-key]\nrest")
    );
    let cut = format!("a\n{begin}\nMIIB\nxyz=");
    assert_eq!(text(&cut).as_deref(), Some("a\n[redacted:private-key]"));
    let public = whole.replace("PRIVATE", "PUBLIC");
    assert_eq!(text(&public), None);
    // The end of another block does not end it.
    let other = whole.replace("MIIB", "MIIB\n-----END CERTIFICATE-----");
    assert_eq!(text(&other), text(&whole));
}

#[test]
fn keys_are_secrets_by_the_ends_of_their_names() {
    for key in [
        "SMTP_PASSWORD",
        "adminPassword",
        "stripe-secret-key",
        "awsSecretAccessKey",
    ] {
        let found = redactor().json(&json!({ key: "x y" }).to_string(), &[]);
        assert!(found.is_some(), "{key}");
    }
    for key in [
        "is_password",
        "reset_password",
        "../../etc/passwd",
        "token_count",
        "passwords",
    ] {
        let found = redactor().json(&json!({ key: "x y" }).to_string(), &[]);
        assert_eq!(found, None, "{key}");
    }
}

#[test]
fn a_long_key_is_not_repeated_by_each_finding() {
    let secrets = vec![["ghp_", "a1B2c3D4e5F6a1B2c3D4e5F6a1B2c3D4e5F6"].concat(); 100];
    let text = json!({ "k".repeat(100_000): secrets }).to_string();
    let found = redactor().json(&text, &[]).expect("it has secrets");
    let bytes: usize = found.findings.iter().map(|found| found.path.len()).sum();
    assert!(found.findings.len() == 100 && bytes < 110_000, "{bytes}");
}

#[test]
fn code_that_reads_a_secret_is_no_secret() {
    for code in [
        "TOKEN=get_token()",
        "DB_PASSWORD=process.env.DB_PASSWORD",
        "API_KEY=os.environ['K']",
    ] {
        assert_eq!(redactor().text(code), None, "{code}");
    }
    assert!(redactor().text("DB_PASSWORD=hunter2hunter2").is_some());
}

#[test]
fn json_in_a_text_is_redacted_by_its_keys() {
    let hidden = placeholder("secret-key-name");
    for (before, secret, after) in [
        (
            "```json\n{\"user\": \"bob\", \"password\" : \"",
            "two words",
            "\"}\n```",
        ),
        (
            "Tool returned {\"api_key\":\"",
            "a\\\"b{c",
            "\",\"n\":1} at last",
        ),
        ("cut off: {\"clientSecret\": \"", "abc def", ""),
        ("{'smtp_password': '", "it is", "'}"),
        ("body: \\\"access_token\\\": \\\"", "abc", "\\\", and more"),
    ] {
        let found = redactor().text(&format!("{before}{secret}{after}"));
        assert_eq!(
            found.expect(before).text,
            format!("{before}{hidden}{after}")
        );
    }
    for text in [
        "{\"password\": null} or \"password\": string",
        "\"max_tokens\": \"5\", \"token\": \"\"",
        "\"password\": \"<yours>\", \"secret\": \"${SECRET}\"",
        "it's \"said\": \"hello\"",
    ] {
        assert_eq!(redactor().text(text), None, "{text}");
    }
}

#[test]
fn secrets_are_found_behind_escapes_and_indents_and_with_signs_in_front() {
    let token = format!("gh{}_{}", "p", "a1B2".repeat(9));
    for (text, secret) in [
        (format!("log: line\\n{token}"), token.as_str()),
        (
            "env:\n    DB_PASSWORD=hunter2hunter2".to_owned(),
            "hunter2hunter2",
        ),
        ("\texport  API_KEY=\"abcdef12\"".to_owned(), "abcdef12"),
        ("postgres://bob:$ecret1@db/x".to_owned(), "$ecret1"),
        ("amqp://bob:%40secret@mq".to_owned(), "%40secret"),
        ("redis://:*b*c@cache".to_owned(), "*b*c"),
        ("ftp://bob:[abc@host".to_owned(), "[abc"),
        ("ftp://bob:{abc@host".to_owned(), "{abc"),
        (
            "authorization: basic dXNlcjpwYXNz".to_owned(),
            "dXNlcjpwYXNz",
        ),
    ] {
        let found = redactor().text(&text);
        let found = found.unwrap_or_else(|| panic!("nothing in {text}"));
        assert!(!found.text.contains(secret), "{}", found.text);
    }
    for text in [
        "postgres://bob:$DB_PASSWORD@db",
        "postgres://bob:${PASS}@db",
        "postgres://bob:{password}@db",
        "postgres://bob:%s@db",
        "postgres://bob:***@db",
        "Authorization: Basic authentication",
        "please set TOKEN=abcdefgh first",
    ] {
        assert_eq!(redactor().text(text), None, "{text}");
    }
}

#[test]
fn configured_patterns_are_found_within_lines_and_bounded() {
    let tickets = with(&[("ticket", "TCK-[0-9]{4}"), ("odd-line", "(?s)odd.*")]);
    let found = tickets
        .text("see TCK-1234,\nodd é and TCK-77\nstays")
        .expect("a pattern");
    assert_eq!(
        found.text,
        "see [redacted:ticket],\n[redacted:odd-line]\nstays"
    );
    let name = "x".parse().expect("a name");
    for (pattern, error) in [
        ("a".repeat(PATTERN_BYTES_MAX + 1), PatternError::TooLong),
        ("(?:[a-z]{100}){1000}".to_owned(), PatternError::TooBig),
        ("a*".to_owned(), PatternError::FindsNothing),
    ] {
        assert_eq!(
            Pattern::new(&name, &pattern).err(),
            Some(error),
            "{pattern}"
        );
    }
    let malformed = Pattern::new(&name, "(").err();
    assert!(matches!(malformed, Some(PatternError::Malformed(_))));
}

#[test]
fn a_stream_shows_what_the_whole_text_shows() {
    let tickets = with(&[("ticket", "TCK-[0-9]{4} [a-z]+")]);
    let mut texts: Vec<String> = secrets()
        .into_iter()
        .map(|(_, before, secret, after)| {
            format!("Bob said: {before}{secret}{after} and then é more. 42 times")
        })
        .collect();
    texts.push("plain words, line\nby line, with 12 numbers".to_owned());
    texts.push(" TCK-1234 abc def".to_owned());
    texts.push(json!({"password": "hunter2"}).to_string());
    for text in &texts {
        for redactor in [redactor(), tickets.clone()] {
            let whole = redactor
                .text(text)
                .map_or_else(|| text.clone(), |found| found.text);
            for size in [1, 3, 7, 1_000] {
                let mut stream = TextStream::new(redactor.clone());
                let chars: Vec<char> = text.chars().collect();
                let pieces = chars
                    .chunks(size)
                    .map(|piece| stream.push(&piece.iter().collect::<String>()));
                let shown: String = pieces.collect();
                assert!(whole.starts_with(&shown), "{size}: {shown:?} of {whole:?}");
            }
        }
    }
}

#[test]
fn a_stream_of_words_is_shown_as_it_comes() {
    let mut stream = TextStream::new(redactor());
    let mut shown = String::new();
    for piece in ["Hel", "lo, ", "it is", " 4", ".", "\n\nDone"] {
        shown.push_str(&stream.push(piece));
    }
    assert_eq!(shown, "Hello, it is 4.\n\nDone");
    let mut link = TextStream::new(redactor());
    let shown: String = ["[", "a link](x) and ", "more"]
        .map(|piece| link.push(piece))
        .concat();
    assert_eq!(shown, "[a link](x) and more");
    let mut list = TextStream::new(redactor());
    assert_eq!(
        [" [", "{\"password\": \"x\"}]"]
            .map(|piece| list.push(piece))
            .concat(),
        ""
    );
    let mut long = TextStream::new(redactor());
    assert_eq!(long.push(&format!("a1{}", "b".repeat(20_000))), "");
    assert!(long.is_stopped());
}

#[test]
fn a_stream_of_tiny_pieces_is_scanned_a_fixed_number_of_times() {
    for piece in ["/", "x", "-", ". ", "é", "k="] {
        let mut stream = TextStream::new(redactor());
        let mut pieces = 0;
        for _ in 0..50_000 {
            pieces += usize::from(!stream.push(piece).is_empty());
        }
        let scanned = stream.scanned / (50_000 * piece.len());
        assert!(scanned <= 64, "{piece:?}: each byte {scanned} times");
        assert!(pieces > 100 || stream.is_stopped(), "{piece:?}: {pieces}");
    }
    let mut blank = TextStream::new(redactor());
    while !blank.is_stopped() {
        assert_eq!(blank.push(" "), "");
    }
}

#[test]
fn no_rule_looks_at_more_characters_than_a_multiple_of_the_text() {
    let steps = |text: &str| {
        scan::STEPS.with(|steps| steps.set(0));
        drop(redactor().text(text));
        scan::STEPS.with(std::cell::Cell::get)
    };
    let behind = [
        "",
        ".",
        " ",
        "-",
        "\"",
        "\n",
        "/",
        "=",
        "@",
        ":",
        "%",
        "<",
        "a",
        "aaaaaaaa.",
        "aaaaaaaaa",
        "a1",
        "A1B2C3D4",
        "\":\"",
        "$A",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    ];
    let mut worst = (0, String::new());
    for anchor in rules::RULES.iter().flat_map(|rule| rule.anchors) {
        for before in ["", ";", "?", " ", "\n", "/", "A_"] {
            for behind in behind {
                let unit = format!("{before}{anchor}{behind}");
                let of = |bytes: usize| steps(&unit.repeat(bytes / unit.len()));
                let (small, large) = (of(4_096), of(16_384));
                // A square would be sixteen times as much.
                assert!(large <= 5 * small + 16_384, "{unit:?}: {small}, {large}");
                worst = worst.max((large / 16_384, unit));
            }
        }
    }
    println!("at most {} steps a byte, with {:?}", worst.0, worst.1);
}

#[test]
fn a_secret_goes_whole_however_long_it_is_and_whatever_signs_it_has() {
    let text = |text: &str| redactor().text(text).map(|found| found.text);
    let variable = placeholder("secret-variable");
    let pair = placeholder("connection-password");
    for (before, secret, after, hidden) in [
        (
            "DB_PASSWORD=\"",
            "correct horse battery staple".to_owned(),
            "\"\nA=1",
            &variable,
        ),
        (
            "DB_PASSWORD=",
            "abcdefg,hijk;lmnop&9".to_owned(),
            "\nA=1",
            &variable,
        ),
        ("PRIVATE_KEY=", "a1B2".repeat(1_250), "\n", &variable),
        ("DB_PASSWORD=", "%xYhijklmnop9!!".to_owned(), "", &variable),
        (
            "Server=h;Password=",
            "abc,defghijk9".to_owned(),
            ";x=1",
            &pair,
        ),
        ("Server=h;Password=", "a1b2c".repeat(300), "", &pair),
        (
            "Server=h;Password='",
            "abc defghijk".to_owned(),
            "';x=1",
            &pair,
        ),
    ] {
        let found = text(&format!("{before}{secret}{after}"));
        assert_eq!(found, Some(format!("{before}{hidden}{after}")));
    }
    let long = format!(
        "eyJ{}.{}.{}",
        "a1B2".repeat(20_000),
        "a".repeat(70_000),
        "b".repeat(70_000)
    );
    assert_eq!(text(&long), Some(placeholder("jwt")));
}

#[test]
fn names_that_programs_use_for_harmless_values_need_one_that_looks_secret() {
    let kept = json!({
        "logprobs": [{"token": "Hello", "logprob": -0.1}, {"token": " wide world", "id": 5}, {"token": 15339},
                     {"token": "information"}],
        "pwd": "/home/bob", "cookie": "chocolate chip",
    });
    assert_eq!(shown(&kept), (kept.clone(), vec![]));
    let secrets = json!({
        "token": "a1b2c3d4e5", "pwd": "hunter2", "cookie": "sid=1", "notionApiKey": "x", "canvas_access_token": "x",
        "issuerPrivateKey": "x", "hashicorp_secret_key": "x", "db_pass": "x",
    });
    assert_eq!(shown(&secrets).1.len(), 8, "{:?}", shown(&secrets));
    for text in [
        "MAX_TOKEN=unlimited",
        "CSRF_TOKEN=disabled",
        "10://20:30@40",
        "a \"token\": \"Hello\" of a model",
    ] {
        assert_eq!(redactor().text(text), None, "{text}");
    }
}

#[test]
fn a_quoted_secret_is_held_back_whatever_it_begins_with() {
    let mut stream = TextStream::new(redactor());
    let pieces = [
        "It says \"password\": \"",
        "$SUPER",
        "SECRET",
        "Z.q9x",
        "\" there",
    ];
    let shown: String = pieces.map(|piece| stream.push(piece)).concat();
    assert!(!shown.contains("SUPER"), "{shown}");
    assert!(shown.contains(&placeholder("secret-key-name")), "{shown}");
}

#[test]
fn no_text_takes_more_than_linear_time() {
    use std::hint::black_box;
    let attacks = [
        "sk-",
        "eyJ",
        "eyJ.",
        "ABSK",
        "+ABSK",
        "=ABSK",
        "://",
        "://a:",
        "password=",
        " password=",
        "a=b password=",
        "-----BEGIN ",
        "-----BEGIN PRIVATE KEY-----",
        "Bearer ",
        "xoxb-",
        "-xoxb-",
        ":AA",
        "Q~",
        "[",
        "{\"a\":",
        "\"",
        "{\"a\":\"{",
        "TOKEN=",
        "X_TOKEN=",
        "ya29.",
        ".ya29.",
        "hooks.slack.com/services/",
        "\":",
        "\"password\":\"",
        "\"password\": \"\\",
        "'token':",
        "\\\"token\\\":\\\"",
        "Authorization: Basic ",
    ];
    for attack in attacks {
        // The count of steps is what matters: with a cost that grows with the square, this takes hours.
        let text = attack.repeat(1_000_000 / attack.len());
        black_box(redactor().text(&text));
        black_box(redactor().json(&Value::from(text).to_string(), &[]));
    }
}
