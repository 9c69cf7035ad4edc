//! Texts to find secrets in. Each secret is joined from parts here, so that no file contains one.

/// Random text of an alphabet, the same in every run.
struct Maker(u64);

impl Maker {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn text(&mut self, alphabet: &str, length: usize) -> String {
        let letters = alphabet.as_bytes();
        let mut text = String::new();
        while text.len() < length {
            let at = usize::try_from(self.next() % letters.len() as u64).expect("a small number");
            text.push(char::from(letters[at]));
        }
        // A letter and a digit, wherever chance left them out.
        if length >= 2 && alphabet.contains('7') {
            text.replace_range(length - 1.., "7");
        }
        text
    }
}

const DIGITS: &str = "0123456789";
const HEX: &str = "0123456789abcdef";
const UPPER: &str = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";
const ALNUM: &str = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const URL: &str = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_";
const BASE64: &str = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz+/";

/// Rule, the text before, the secret, the text after.
pub(super) fn secrets() -> Vec<(&'static str, String, String, String)> {
    let mut make = Maker(0x5eed_5eed_5eed_5eed);
    let mut all = Vec::new();
    let simple = [
        ("aws-access-key", "AKIA", UPPER, 16),
        ("aws-access-key", "ASIA", UPPER, 16),
        ("aws-bedrock-key", "ABSK", BASE64, 110),
        ("google-api-key", "AIza", URL, 35),
        ("google-access-token", "ya29.", URL, 120),
        ("google-refresh-token", "1//0", URL, 60),
        ("google-client-secret", "GOCSPX-", URL, 28),
        ("digitalocean-token", "dop_v1_", HEX, 64),
        ("heroku-key", "HRKU-", URL, 60),
        ("fly-token", "fm2_", BASE64, 300),
        ("netlify-token", "nfp_", ALNUM, 36),
        ("vercel-token", "vcp_", ALNUM, 56),
        ("supabase-key", "sbp_", HEX, 40),
        ("planetscale-token", "pscale_tkn_", URL, 43),
        ("databricks-token", "dapi", HEX, 32),
        ("pulumi-token", "pul-", HEX, 40),
        ("vault-token", "hvs.", URL, 95),
        ("doppler-token", "dp.pt.", ALNUM, 43),
        ("age-secret-key", "AGE-SECRET-KEY-1", UPPER, 58),
        ("onepassword-token", "ops_eyJ", URL, 400),
        ("github-token", "ghp_", ALNUM, 36),
        ("github-token", "ghs_", ALNUM, 36),
        ("github-fine-grained-token", "github_pat_", URL, 82),
        ("gitlab-token", "glpat-", URL, 20),
        ("gitlab-token", "glrt-", URL, 20),
        ("atlassian-token", "ATATT3", URL, 180),
        ("npm-token", "npm_", ALNUM, 36),
        ("pypi-token", "pypi-", URL, 170),
        ("rubygems-key", "rubygems_", HEX, 48),
        ("crates-io-token", "cio", ALNUM, 32),
        (
            "nuget-key",
            "oy2",
            "0123456789abcdefghijklmnopqrstuvwxyz",
            43,
        ),
        ("docker-token", "dckr_pat_", URL, 27),
        ("jfrog-key", "AKCp", ALNUM, 69),
        ("sourcegraph-token", "sgp_", HEX, 40),
        ("stripe-key", "sk_live_", ALNUM, 24),
        ("stripe-key", "rk_test_", ALNUM, 24),
        ("stripe-webhook-secret", "whsec_", ALNUM, 32),
        ("square-token", "sq0atp-", URL, 22),
        ("shopify-token", "shpat_", HEX, 32),
        ("shippo-token", "shippo_live_", HEX, 40),
        ("easypost-key", "EZAK", ALNUM, 54),
        ("flutterwave-key", "FLWSECK-", ALNUM, 32),
        ("slack-token", "xoxb-", URL, 50),
        ("slack-app-token", "xapp-", URL, 80),
        ("mailgun-key", "key-", HEX, 32),
        ("twilio-key", "SK", HEX, 32),
        ("facebook-token", "EAA", ALNUM, 180),
        ("anthropic-key", "sk-ant-", URL, 100),
        ("openrouter-key", "sk-or-", URL, 67),
        ("openai-key", "sk-", ALNUM, 48),
        ("openai-key", "sk-proj-", URL, 150),
        ("huggingface-token", "hf_", ALNUM, 34),
        ("replicate-token", "r8_", ALNUM, 37),
        ("groq-key", "gsk_", ALNUM, 52),
        ("xai-key", "xai-", ALNUM, 80),
        ("perplexity-key", "pplx-", ALNUM, 48),
        ("nvidia-key", "nvapi-", URL, 64),
        ("fireworks-key", "fw_", ALNUM, 24),
        ("pinecone-key", "pcsk_", ALNUM, 70),
        ("tavily-key", "tvly-", ALNUM, 32),
        ("elevenlabs-key", "sk_", HEX, 48),
        ("langsmith-key", "lsv2_pt_", HEX, 43),
        ("newrelic-key", "NRAK-", UPPER, 27),
        ("sentry-token", "sntrys_", BASE64, 120),
        ("grafana-token", "glsa_", ALNUM, 41),
        ("posthog-key", "phx_", ALNUM, 43),
        ("linear-key", "lin_api_", ALNUM, 40),
        ("notion-token", "ntn_", ALNUM, 46),
        ("figma-token", "figd_", URL, 40),
        ("contentful-token", "CFPAT-", URL, 43),
        ("prefect-key", "pnu_", ALNUM, 36),
        ("statehold-key", "shk_", URL, 43),
    ];
    for (rule, anchor, alphabet, length) in simple {
        let secret = format!("{anchor}{}", make.text(alphabet, length));
        all.push((rule, String::new(), secret, String::new()));
    }
    all.extend(joined(&mut make));
    all
}

/// Secrets of several parts, and secrets that are known by what is around them.
fn joined(make: &mut Maker) -> Vec<(&'static str, String, String, String)> {
    let all = [of_clouds(make), of_services(make), of_no_vendor(make)].concat();
    let all = all.into_iter();
    all.map(|(rule, before, secret, after)| (rule, before.to_owned(), secret, after.to_owned()))
        .collect()
}

type Secret = (&'static str, &'static str, String, &'static str);

fn of_clouds(make: &mut Maker) -> Vec<Secret> {
    let mut all = Vec::new();
    let aws = make.text(BASE64, 40);
    all.push(("aws-secret-key", "aws_secret_access_key = ", aws, "\n"));
    let azure = make.text(BASE64, 86);
    all.push((
        "azure-account-key",
        "AccountName=x;AccountKey=",
        azure,
        "==;EndpointSuffix=y",
    ));
    all.push(("azure-client-secret", "abc8Q~", make.text(URL, 34), ""));
    let origin = format!("v1.0-{}-{}", make.text(HEX, 24), make.text(HEX, 146));
    all.push(("cloudflare-origin-key", "", origin, ""));
    all.push((
        "terraform-token",
        "abcdefgh123456.atlasv1.",
        make.text(ALNUM, 67),
        "",
    ));
    let braintree = format!(
        "access_token$production${}${}",
        make.text(ALNUM, 16),
        make.text(HEX, 32)
    );
    all.push(("braintree-token", "", braintree, ""));
    let uuid = [8, 4, 4, 4, 12]
        .map(|length| make.text(HEX, length))
        .join("-");
    all.push(("plaid-token", "", format!("access-sandbox-{uuid}"), ""));
    all
}

fn of_services(make: &mut Maker) -> Vec<Secret> {
    let mut all = Vec::new();
    let slack = format!(
        "T{}/B{}/{}",
        make.text(UPPER, 10),
        make.text(UPPER, 10),
        make.text(ALNUM, 24)
    );
    all.push((
        "slack-webhook",
        "https://hooks.slack.com/services/",
        slack,
        "",
    ));
    let discord = format!("{}/{}", make.text(DIGITS, 19), make.text(URL, 68));
    all.push((
        "discord-webhook",
        "https://discord.com/api/webhooks/",
        discord,
        "",
    ));
    all.push((
        "telegram-bot-token",
        "1234567890:AA",
        make.text(URL, 33),
        "",
    ));
    let sendgrid = format!("SG.{}.{}", make.text(URL, 22), make.text(URL, 43));
    all.push(("sendgrid-key", "", sendgrid, ""));
    let brevo = format!("xkeysib-{}-{}", make.text(HEX, 64), make.text(ALNUM, 16));
    all.push(("brevo-key", "", brevo, ""));
    let resend = format!("re_{}_{}", make.text(ALNUM, 8), make.text(ALNUM, 24));
    all.push(("resend-key", "", resend, ""));
    let dynatrace = format!("dt0c01.{}.{}", make.text(UPPER, 24), make.text(UPPER, 64));
    all.push(("dynatrace-token", "", dynatrace, ""));
    let postman = format!("PMAK-{}-{}", make.text(HEX, 24), make.text(HEX, 34));
    all.push(("postman-key", "", postman, ""));
    all
}

fn of_no_vendor(make: &mut Maker) -> Vec<Secret> {
    let mut all = Vec::new();
    let pem = format!(
        "-----BEGIN {} KEY-----\n{}\n-----END {} KEY-----",
        "PRIVATE",
        make.text(BASE64, 64),
        "PRIVATE"
    );
    all.push(("private-key", "", pem, ""));
    let jwt = [36, 90, 43].map(|length| make.text(URL, length)).join(".");
    all.push(("jwt", "", format!("eyJ{jwt}"), ""));
    let bearer = make.text(URL, 40);
    all.push((
        "bearer-token",
        "curl -H 'Authorization: Bearer ",
        bearer,
        "' https://x.test",
    ));
    let basic = make.text(BASE64, 24);
    all.push((
        "basic-credentials",
        "Authorization: Basic ",
        basic,
        "==\r\nHost: x",
    ));
    all.push((
        "url-password",
        "amqps://bob:",
        make.text(ALNUM, 12),
        "@mq.test:5671/v",
    ));
    all.push((
        "connection-password",
        "Server=db;User Id=sa;Password=",
        make.text(ALNUM, 12),
        ";Encrypt=yes",
    ));
    all.push((
        "connection-password",
        "host=db user=bob password=",
        make.text(ALNUM, 12),
        " dbname=x",
    ));
    all.push((
        "connection-password",
        "https://x.test/login?password=",
        make.text(ALNUM, 12),
        "&x=1",
    ));
    all.push((
        "secret-variable",
        "A=1\nexport DB_PASSWORD='",
        make.text(ALNUM, 12),
        "'\nB=2",
    ));
    all.push((
        "secret-variable",
        "MY_API_KEY=",
        make.text(ALNUM, 20),
        "\nB=2",
    ));
    all.push((
        "secret-key-name",
        "the service said {\"password\": \"",
        make.text(ALNUM, 12),
        "\"} and went away",
    ));
    all
}

/// Texts without secrets: prose, code, and what is random and public.
pub(super) fn harmless() -> Vec<String> {
    let mut make = Maker(0xfeed_feed_feed_feed);
    let mut all: Vec<String> = PLAIN.iter().map(|text| (*text).to_owned()).collect();
    for _ in 0..2_000 {
        let uuid = [8, 4, 4, 4, 12]
            .map(|length| make.text(HEX, length))
            .join("-");
        all.push(format!("id {uuid}, commit {}", make.text(HEX, 40)));
        all.push(format!(
            "sha256:{} etag=\"{}\"",
            make.text(HEX, 64),
            make.text(HEX, 32)
        ));
        all.push(format!("integrity sha512-{}==", make.text(BASE64, 86)));
        all.push(format!(
            "call_{} toolu_{} req_{}",
            make.text(ALNUM, 24),
            make.text(ALNUM, 24),
            make.text(ALNUM, 16)
        ));
        all.push(format!(
            "tel +{} order {}",
            make.text(DIGITS, 11),
            make.text(UPPER, 10)
        ));
    }
    for _ in 0..40 {
        all.push(format!(
            "data:image/png;base64,{}=",
            make.text(BASE64, 40_000)
        ));
    }
    // The sources of this crate are code, the pages of the project are prose.
    for text in [
        include_str!("../../redact.rs"),
        include_str!("../../decide.rs"),
        include_str!("../../record.rs"),
        include_str!("../../command.rs"),
        include_str!("../../limits.rs"),
        include_str!("../rules.rs"),
        include_str!("../scan.rs"),
        include_str!("../../../../../ARCHITECTURE.md"),
        include_str!("../../../../../docs/api.md"),
        include_str!("../../../../../docs/holds.md"),
        include_str!("../../../../../docs/security.md"),
        include_str!("../../../../../docs/configuration.md"),
        include_str!("../../../../../openapi.json"),
        include_str!("../../../../../Cargo.lock"),
    ] {
        all.extend(text.split("\n\n").map(str::to_owned));
    }
    all
}

const PLAIN: &[&str] = &[
    "The token bucket refills; each token is worth one call, and the secret of success is practice.",
    "def login(user, password=None, token=''):\n    return check(user, password=password)",
    "password = getpass.getpass()\nclient = Client(api_key=os.environ['API_KEY'])",
    "let token = parser.next_token()?; if token.kind == Kind::Secret { return Err(secret) }",
    "Bearer authentication is described in RFC 6750; Basic authentication in RFC 7617.",
    "send the header `Authorization: Bearer <token>` or `Authorization: Bearer $TOKEN`",
    "export API_KEY=$MY_KEY\nexport TOKEN=\"${TOKEN}\"\nPASSWORD=<your password>",
    "https://example.org/a/b?page=2&token_type=x#password",
    "ssh://git@host.test:22/repo.git and https://user@host.test/",
    "the re_export_of_something and key-value pairs, sk-learn, task-force, hf_transfer",
    "scikit: sk-learn-contrib-package-index; css: sk-circle-fade-delay-animation-name",
    "-----BEGIN CERTIFICATE-----\nMIIDdzCCAl+gAwIBAgIEAgAAuTANBgkqhkiG9w0BAQUFADBa\n-----END CERTIFICATE-----",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJ0bm5vdGFzZWNyZXRidXRhcHVibGljb25l bob@host",
    "SELECT secret, token FROM vault WHERE password IS NULL; -- pwd=none",
    "cd /srv && pwd; echo $PWD; OLDPWD=/tmp",
    "npm_config_registry=https://registry.npmjs.org/ npm_package_version=1.2.3",
    "pk_live_ keys are public; whsec_ begins the secret of a webhook; ghp_ begins a token",
    "AKIA begins an access key. eyJ begins a JWT: header.payload.signature",
    "v1.0-rc.1, v1.0-beta, dt=2024-01-01, EAACH, EZAKIEL, oy2k, ciology",
    "2024-05-01T12:00:00Z 10.0.0.1:8080 52.5200,13.4050 +49 30 1234567 4111111111111112",
    "Zażółć gęślą jaźń; 日本語のテキスト; password — пароль; émigré",
    "x=1 y=2, password=abc", // a pair behind a comma is an argument of a call
];
