//! `knarr token create|list|delete`: tokens for joining nodes.

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use clap::{Args, Subcommand};
use jiff::{SignedDuration, Timestamp};
use knarr_client::k8s_openapi::api::core::v1::{Endpoints, Secret};
use knarr_client::kube::api::{DeleteParams, ListParams, PostParams};
use knarr_client::kube::{self, Api, Client, Config};

use super::client_arguments::ClientArguments;
use crate::join::{BootstrapToken, GROUP, JoinToken, Pin, SERVER_GROUP};
use crate::output;

const NAMESPACE: &str = "kube-system";
const SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";
const SECRET_PREFIX: &str = "bootstrap-token-";

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    #[command(flatten)]
    cluster: ClientArguments,
    #[command(subcommand)]
    command: Token,
}

#[derive(Subcommand, Clone, Debug)]
enum Token {
    /// Create a token for new nodes.
    Create {
        /// Print the complete command that adds a node or a server.
        #[arg(long)]
        print_join_command: bool,
        /// What the token admits.
        #[arg(long, value_enum, default_value_t = Role::Agent)]
        role: Role,
        /// Validity of the token: 30m, 24h, 7d; 0 for no expiry.
        #[arg(long, default_value = "24h", value_parser = lifetime)]
        ttl: Duration,
        /// Description of the token.
        #[arg(long, default_value = "")]
        description: String,
    },
    /// List tokens, without their secrets.
    List,
    /// Delete tokens, so that no further node can join with them. Nodes that have joined are not affected.
    Delete {
        /// Tokens, or their ids (the text before the first dot).
        #[arg(required = true)]
        tokens: Vec<String>,
    },
}

/// What a token admits. Neither admits the other.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Agent,
    Server,
}

impl Role {
    /// The group of the bearer.
    fn group(self) -> &'static str {
        match self {
            Role::Agent => GROUP,
            Role::Server => SERVER_GROUP,
        }
    }

    fn command(self) -> &'static str {
        match self {
            Role::Agent => "agent",
            Role::Server => "server",
        }
    }
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let config = arguments.cluster.config().await?;
    let client = arguments.cluster.client().await?;
    match arguments.command {
        Token::Create { print_join_command, role, ttl, description } => {
            let pin = pin(&config)?;
            let token = create(&client, role, ttl, &description, pin, Timestamp::now()).await?;
            if print_join_command {
                println!("knarr {} --server {} --token {token}", role.command(), server(&client).await?);
            } else {
                println!("{token}");
            }
        }
        Token::List => print!("{}", list(&client, Timestamp::now()).await?),
        Token::Delete { tokens } => {
            for token in tokens {
                let id = token.split('.').next().unwrap_or_default();
                delete(&client, id).await?;
                println!("token {id} deleted");
            }
        }
    }
    Ok(())
}

async fn create(
    client: &Client,
    role: Role,
    ttl: Duration,
    description: &str,
    pin: Pin,
    now: Timestamp,
) -> anyhow::Result<JoinToken> {
    let token = JoinToken { bootstrap: BootstrapToken::generate(), pin };
    let secret = secret(&token.bootstrap, role, ttl, description, now)?;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    secrets.create(&PostParams::default(), &secret).await.context("cannot create the token")?;
    Ok(token)
}

fn secret(
    token: &BootstrapToken,
    role: Role,
    ttl: Duration,
    description: &str,
    now: Timestamp,
) -> anyhow::Result<Secret> {
    let mut data = vec![
        ("token-id", token.id.clone()),
        ("token-secret", token.secret.clone()),
        ("usage-bootstrap-authentication", "true".to_owned()),
        ("auth-extra-groups", role.group().to_owned()),
    ];
    if !ttl.is_zero() {
        let until =
            now.checked_add(ttl).map_err(|_| anyhow!("--ttl is too long; use 0 for a token that never expires"))?;
        let until = Timestamp::from_second(until.as_second())?;
        data.push(("expiration", until.to_string()));
    }
    if !description.is_empty() {
        data.push(("description", description.to_owned()));
    }
    Ok(Secret {
        metadata: kube::api::ObjectMeta {
            name: Some(format!("{SECRET_PREFIX}{}", token.id)),
            namespace: Some(NAMESPACE.to_owned()),
            ..Default::default()
        },
        type_: Some(SECRET_TYPE.to_owned()),
        string_data: Some(data.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
        ..Default::default()
    })
}

async fn list(client: &Client, now: Timestamp) -> anyhow::Result<String> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let selector = ListParams::default().fields(&format!("type={SECRET_TYPE}"));
    let tokens = secrets.list(&selector).await.context("cannot list tokens")?;
    let rows: Vec<[String; 4]> = tokens.items.iter().map(|secret| row(secret, now)).collect();
    Ok(output::table(["ID", "TIME LEFT", "EXPIRES", "DESCRIPTION"], &rows))
}

fn row(secret: &Secret, now: Timestamp) -> [String; 4] {
    let field = |key: &str| {
        let value = secret.data.as_ref().and_then(|data| data.get(key));
        value.map(|value| String::from_utf8_lossy(&value.0).into_owned()).unwrap_or_default()
    };
    let expires = field("expiration");
    let left = match expires.parse::<Timestamp>() {
        _ if expires.is_empty() => "for ever".to_owned(),
        Ok(until) if until > now => rounded(until.duration_since(now)),
        Ok(_) => "expired".to_owned(),
        Err(_) => "unknown".to_owned(),
    };
    [field("token-id"), left, expires, field("description")]
}

fn rounded(left: SignedDuration) -> String {
    match left.as_secs() {
        seconds if seconds >= 48 * 3600 => format!("{}d", seconds / (24 * 3600)),
        seconds if seconds >= 2 * 3600 => format!("{}h", seconds / 3600),
        seconds if seconds >= 120 => format!("{}m", seconds / 60),
        seconds => format!("{seconds}s"),
    }
}

async fn delete(client: &Client, id: &str) -> anyhow::Result<()> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    match secrets.delete(&format!("{SECRET_PREFIX}{id}"), &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => bail!("there is no token {id}"),
        Err(error) => Err(error).with_context(|| format!("cannot delete token {id}")),
    }
}

/// The pin of the kubeconfig's certificate authority. While the authority is replaced there are two, and the first signs.
fn pin(config: &Config) -> anyhow::Result<Pin> {
    let authorities = config.root_cert.as_deref().unwrap_or_default();
    let Some(authority) = authorities.first() else { bail!("the kubeconfig has no certificate authority to pin") };
    Pin::of(authority)
}

/// The URL at which other hosts reach the API server.
async fn server(client: &Client) -> anyhow::Result<String> {
    let endpoints: Api<Endpoints> = Api::namespaced(client.clone(), "default");
    let found = endpoints.get("kubernetes").await.context("cannot read the server's address")?;
    let subset = found.subsets.unwrap_or_default().into_iter().next().unwrap_or_default();
    let address = subset.addresses.unwrap_or_default().into_iter().next().map(|address| address.ip);
    let port = subset.ports.unwrap_or_default().into_iter().next().map(|port| port.port);
    match (address, port) {
        (Some(address), Some(port)) if address.contains(':') => Ok(format!("https://[{address}]:{port}")),
        (Some(address), Some(port)) => Ok(format!("https://{address}:{port}")),
        _ => bail!("the server's address is not published in default/kubernetes yet"),
    }
}

/// `90s`, `30m`, `24h`, `7d`, or `0`.
fn lifetime(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.char_indices().find(|(_, character)| !character.is_ascii_digit()) {
        Some((at, _)) => text.split_at(at),
        None if text == "0" => return Ok(Duration::ZERO),
        None => return Err(format!("{text:?} has no unit: s, m, h or d")),
    };
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 24 * 3600,
        _ => return Err(format!("{unit:?} is not a unit of time: s, m, h or d")),
    };
    let number: u64 = number.parse().map_err(|_| format!("{text:?} is not a duration such as 24h"))?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(|| format!("{text} is too long"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed() {
        for (text, expected) in [
            ("0", Some(0)),
            ("90s", Some(90)),
            ("30m", Some(1800)),
            ("24h", Some(86_400)),
            ("7d", Some(604_800)),
            ("24", None),
            ("h", None),
            ("1y", None),
            ("", None),
        ] {
            assert_eq!(lifetime(text).ok().map(|length| length.as_secs()), expected, "{text:?}");
        }
    }

    #[test]
    fn a_token_admits_servers_or_nodes_but_not_both() {
        let group = |role| {
            let secret = secret(&BootstrapToken::generate(), role, Duration::ZERO, "", Timestamp::now()).unwrap();
            secret.string_data.unwrap().remove("auth-extra-groups").unwrap()
        };
        assert_eq!((group(Role::Agent).as_str(), group(Role::Server).as_str()), (GROUP, SERVER_GROUP));
        assert_ne!(GROUP, SERVER_GROUP);
    }

    #[test]
    fn a_row_shows_the_remaining_validity() {
        let now: Timestamp = "2026-06-01T00:00:00Z".parse().unwrap();
        let token = BootstrapToken::generate();
        for (ttl, left) in [(0, "for ever"), (90, "90s"), (86_400, "24h"), (604_800, "7d")] {
            let secret = secret(&token, Role::Agent, Duration::from_secs(ttl), "rack 1", now).unwrap();
            let data = secret.string_data.clone().unwrap().into_iter();
            let data = data.map(|(key, value)| (key, knarr_client::k8s_openapi::ByteString(value.into_bytes())));
            let stored = Secret { data: Some(data.collect()), ..secret };
            let rendered = row(&stored, now);
            assert_eq!((rendered[1].as_str(), rendered[3].as_str()), (left, "rack 1"));
            assert!(!rendered.iter().any(|cell| cell.contains(&token.secret)));
        }
    }
}
