//! Compiles `jwt` of a way to authenticate.

use std::collections::BTreeSet;
use std::path::Path;

use http::Uri;
use tidegate_access::auth::jwt::{
    ClaimRules, JwtKeyType, JwtMethod, JwtVerifier, KeyLocation, KeyServer, KeySet, LiveKeySet,
    MIN_SECRET, RequiredClaim,
};
use tidegate_config::{Config, HeaderRulesConfig, JwksLocation, JwtAlgorithm, JwtConfig};
use tidegate_identity::KeyPart;
use tidegate_template::{Template, Variable};
use tidegate_tls::{ClientTls, TlsFile, client::OfferedToServer};

use super::Snapshot;
use super::listen::tls_fault;
use super::section::Section;

/// The algorithms without `algorithms`.
const DEFAULT_ALGORITHMS: [JwtAlgorithm; 3] =
    [JwtAlgorithm::Rs256, JwtAlgorithm::Es256, JwtAlgorithm::EdDsa];

/// The name of a method, and the text before the names of its consumers.
#[derive(Clone, Copy)]
pub(super) struct NamedMethod<'m> {
    pub(super) name: &'m str,
    pub(super) prefix: &'m str,
}

impl Snapshot {
    /// The methods that verify signed tokens.
    pub fn jwt_methods(&self) -> impl Iterator<Item = &JwtMethod> {
        self.auth_methods.iter().filter_map(|method| method.jwt())
    }
}

/// Compiles the method called `name`, at `section`. `None` if its keys are faulty.
pub(super) fn method(
    section: &Section<'_>,
    NamedMethod { name, prefix }: NamedMethod<'_>,
    configured: &JwtConfig,
    config: &Config,
    files: &mut Vec<TlsFile>,
) -> Option<JwtMethod> {
    check_claims(section, configured);
    let algorithms = algorithms(section, configured);
    let verifier = JwtVerifier::new(algorithms.clone(), rules(configured, prefix, config));
    if !section.can_read(&["jwks", "secret", "algorithms", "issuer"]) {
        return None;
    }
    match (&configured.jwks, &configured.secret) {
        (Some(location), None) => {
            let at = section.at("jwks");
            let server = match location {
                JwksLocation::File(path) => {
                    let keys = file_keys(&at, path, &algorithms, files)?;
                    let method = JwtMethod::new(name, verifier, None);
                    method.set_keys(LiveKeySet::fixed(keys));
                    return Some(method);
                }
                JwksLocation::Url(url) => {
                    note_clear_text(&at, url);
                    KeyLocation::Url(url.to_string().into())
                }
                JwksLocation::Discover => {
                    check_discovery(&section.at("issuer"), &configured.issuer);
                    KeyLocation::Issuer(configured.issuer.as_str().into())
                }
            };
            let server = key_server(section, configured, server, algorithms, files)?;
            Some(JwtMethod::new(name, verifier, Some(server)))
        }
        (None, Some(secret)) => {
            let what = "tokens that are signed with a secret, which every holder can issue";
            section.at("secret").note_at_key(what, "`jwks`, if the issuer has public keys");
            let method = JwtMethod::new(name, verifier, None);
            if let Some(secret) = section.at("secret").secret(secret, MIN_SECRET) {
                let keys = KeySet::of_secret(secret.as_bytes(), &algorithms);
                method.set_keys(LiveKeySet::fixed(keys));
            }
            Some(method)
        }
        (Some(_), Some(_)) => {
            section.at("secret").fault_at_key("both `jwks` and `secret`", "one of them");
            None
        }
        (None, None) => {
            section.fault_at_key("no keys", "`jwks` or `secret`");
            None
        }
    }
}

/// The algorithms, or the default ones. Reports ones that do not fit the keys.
fn algorithms(section: &Section<'_>, configured: &JwtConfig) -> Vec<JwtAlgorithm> {
    let has_secret = configured.secret.is_some();
    let Some(listed) = &configured.algorithms else {
        return if has_secret { vec![JwtAlgorithm::Hs256] } else { DEFAULT_ALGORITHMS.into() };
    };
    section.at("algorithms").ensure(!listed.is_empty(), "no algorithm", "at least one");
    for (index, algorithm) in listed.iter().enumerate() {
        let (section, name) = (section.at("algorithms").index(index), algorithm.name());
        let is_first = !listed[..index].contains(algorithm);
        section.ensure(is_first, &format!("duplicate `{name}`"), "each algorithm once");
        let is_symmetric = algorithm.key_type() == JwtKeyType::Secret;
        if is_symmetric && !has_secret {
            section.fault(format!("`{name}` without `secret`"), "an algorithm with public keys");
        }
        if !is_symmetric && has_secret {
            section.fault(format!("`{name}` with `secret`"), "HS256, HS384 or HS512");
        }
    }
    listed.clone()
}

/// Reports an empty issuer, no audience, and requirements that no token can meet.
fn check_claims(section: &Section<'_>, configured: &JwtConfig) {
    let issuer = section.at("issuer");
    issuer.ensure(!configured.issuer.is_empty(), "an empty issuer", "the `iss` of its tokens");
    let audiences = section.at("audiences");
    if section.can_read(&["audiences"]) {
        let expected = "at least one: without an audience, tokens for other services are accepted";
        audiences.ensure(!configured.audiences.is_empty(), "no audience", expected);
    }
    for (index, audience) in configured.audiences.iter().enumerate() {
        let section = audiences.index(index);
        section.ensure(!audience.is_empty(), "an empty audience", "a name of this service");
    }
    for (claim, values) in &configured.require {
        let section = section.at("require").entry(claim);
        section.ensure(!values.is_empty(), "no value", "at least one");
        let is_scope = matches!(&**claim, "scope" | "scp");
        for (index, value) in values.iter().enumerate().filter(|_| is_scope) {
            // RFC 6749, 3.3.
            let is_word = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\');
            let is_valid = !value.is_empty() && value.bytes().all(is_word);
            let what = "this scope";
            section.index(index).ensure(is_valid, what, "one word without quotes and backslashes");
        }
    }
}

fn rules(configured: &JwtConfig, prefix: &str, config: &Config) -> ClaimRules {
    let boxed = |texts: &[String]| texts.iter().map(|text| text.as_str().into()).collect();
    let required = configured
        .require
        .iter()
        .map(|(name, values)| RequiredClaim { name: name.as_str().into(), values: boxed(values) });
    ClaimRules {
        issuer: configured.issuer.as_str().into(),
        audiences: boxed(&configured.audiences),
        leeway: configured.leeway.millis(),
        consumer: configured.consumer.0.as_str().into(),
        prefix: prefix.into(),
        plan: configured.plan.as_ref().map(|plan| plan.0.as_str().into()),
        plans: config.plans.keys().map(|name| name.as_str().into()).collect(),
        required: required.collect(),
        kept: used_claims(config).into_iter().map(Into::into).collect(),
    }
}

/// The claims that the configuration uses: in keys, tiers and templates.
fn used_claims(config: &Config) -> BTreeSet<String> {
    let limits = config.limits.values();
    let keys = limits.clone().flat_map(|limit| &limit.key);
    let tiers = limits.flat_map(|limit| &limit.tiers).map(|tier| &tier.matches.part);
    let hashes = config.upstreams.values().flat_map(|upstream| &upstream.hash_key);
    let parts = keys.chain(tiers).chain(hashes);
    let in_parts = parts.filter_map(|part| match part {
        KeyPart::Claim(name) => Some(name.clone()),
        _ => None,
    });
    let texts = config.routes.iter().flat_map(|route| {
        let rules = [&route.headers.request, &route.headers.response];
        let values = rules
            .into_iter()
            .flat_map(|rules: &HeaderRulesConfig| rules.set.values().chain(rules.add.values()));
        let redirect = route.redirect.as_ref().map(|redirect| &redirect.to);
        values.chain(redirect).chain(&route.rewrite)
    });
    let templates = texts.filter_map(|text| Template::parse(text).ok());
    let in_templates = templates.flat_map(|template| {
        let claims = template.variables().filter_map(|variable| match variable {
            Variable::Claim(name) => Some(name.to_string()),
            _ => None,
        });
        claims.collect::<Vec<_>>()
    });
    in_parts.chain(in_templates).collect()
}

/// The keys in a file.
fn file_keys(
    section: &Section<'_>,
    path: &Path,
    algorithms: &[JwtAlgorithm],
    files: &mut Vec<TlsFile>,
) -> Option<KeySet> {
    let (file, content) = TlsFile::read(path).map_err(|error| tls_fault(section, &error)).ok()?;
    files.push(file);
    let keys = KeySet::parse(&content, algorithms);
    keys.map_err(|error| section.fault(format!("{}: {error}", path.display()), "a JWK Set")).ok()
}

/// The server of a key set, with the rules of handshakes.
fn key_server(
    section: &Section<'_>,
    configured: &JwtConfig,
    location: KeyLocation,
    algorithms: Vec<JwtAlgorithm>,
    files: &mut Vec<TlsFile>,
) -> Option<KeyServer> {
    let authorities = configured.tls_ca.as_deref();
    let algorithms = algorithms.into();
    if matches!(&configured.jwks, Some(JwksLocation::Url(url)) if url.scheme_str() == Some("http"))
    {
        let section = section.at("tls_ca");
        section.ensure(authorities.is_none(), "`tls_ca` without TLS", "an https:// key set");
        let tls = ClientTls::without_authorities();
        let tls = tls.map_err(|error| tls_fault(&section, &error)).ok()?;
        return Some(KeyServer { location, algorithms, tls, tls_digest: 0 });
    }
    let tls = ClientTls::new(authorities, None, OfferedToServer::Http1);
    let key = if authorities.is_some() { "tls_ca" } else { "jwks" };
    let tls = tls.map_err(|error| tls_fault(&section.at(key), &error)).ok()?;
    files.extend(tls.files.iter().cloned());
    let tls_digest = tls.digest();
    Some(KeyServer { location, algorithms, tls: tls.http1_config, tls_digest })
}

/// Notes a key set whose keys an attacker in the network could replace.
fn note_clear_text(section: &Section<'_>, url: &Uri) {
    let is_local = url.host().is_some_and(KeyServer::is_loopback);
    if url.scheme_str() == Some("http") && !is_local {
        let what = "an http:// key set: who can change its traffic can issue tokens";
        section.note(what, "an https:// URL");
    }
}

/// Reports an issuer at which no OpenID Connect configuration can be.
fn check_discovery(section: &Section<'_>, issuer: &str) {
    let url = issuer.parse::<Uri>().ok().filter(|url| url.host().is_some());
    let is_valid = !issuer.contains(['@', '#', '?'])
        && url.is_some_and(|url| match url.scheme_str() {
            Some("https") => true,
            Some("http") => url.host().is_some_and(KeyServer::is_loopback),
            _ => false,
        });
    let what = format!("`{issuer}` with `jwks: discover`");
    section.ensure(is_valid, &what, "an https:// URL without user and query");
}

#[cfg(test)]
mod tests;
