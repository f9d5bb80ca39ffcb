//! The first inputs of targets that read what identity providers, drivers and tools send.

use super::texts;

/// Adds inputs by target.
pub fn add(add: &mut impl FnMut(&'static str, Vec<Vec<u8>>)) {
    add("authentication_configuration", texts(&CONFIGURATIONS));
    add("issuer_document", texts(&ISSUER_DOCUMENTS));
    add("web_token", texts(&TOKENS));
    add("kms_value", vec![KMS_VALUE.to_vec()]);
    add("command_line", texts(&COMMAND_LINES));
    add("component_configuration", texts(&COMPONENT_CONFIGURATIONS));
    add("csi_message", CSI_MESSAGES.iter().map(|message| message.to_vec()).collect());
    add("helm_chart", texts(&CHARTS));
    add("registry_request", texts(&REGISTRY));
    add("sealed_bundle", texts(&[r#"{"salt":"AAAA","content":"AAAAAAAAAAAAAAAAAAAAAAAAAAAA"}"#]));
    let opened = [tunnel(1, b"\x88"), frame(0, 0, 1, b"hello")].concat();
    let failed = [tunnel(1, b"\x08\x03502"), frame(0, 1, 1, b"dial tcp: refused")].concat();
    add("tunnel", vec![tunnel(0, CONNECT), tunnel(1, b"\x88"), opened, failed]);
    add("unix_connection", unix_connections());
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
}

/// The preface of HTTP/2 with empty settings, then a HEADERS frame.
fn tunnel(end: u8, headers: &[u8]) -> Vec<u8> {
    let preface: &[u8] = if end == 0 { PREFACE } else { b"" };
    [&[end], preface, &frame(4, 0, 0, b""), &frame(1, 4, 1, headers)].concat()
}

/// Calls of a client on a unix socket, in pieces and to a server; then frames that break off or name lengths that are not true.
fn unix_connections() -> Vec<Vec<u8>> {
    let settings = frame(4, 0, 0, b"\x00\x03\x00\x00\x00\x64\x00\x04\x00\x01\x00\x00");
    // A call without a message: no compression, length 0.
    let message = |stream| frame(0, 1, stream, &[0; 5]);
    let middle = CALL.len() - 35;
    let calls = [
        settings.clone(),
        frame(1, 4, 1, CALL),
        message(1),
        // The same fields by their indices, then the size of the table and a field that is never indexed.
        frame(1, 4, 3, b"\x83\x86\xc1\xc0\xbf\xbe"),
        message(3),
        frame(1, 5, 5, b"\x3f\x02\x83\x86\x11\x07/a.sock\x04\x02/m"),
        // A block in two frames, of which the first ends inside a value.
        frame(1, 0, 7, &CALL[..middle]),
        frame(9, 4, 7, &CALL[middle..]),
        message(7),
        // Padding, priority, both, and more padding than there is.
        frame(1, 0xc, 9, &[b"\x03", CALL, b"\0\0\0"].concat()),
        frame(1, 0x24, 11, &[b"\0\0\0\0\x10", CALL].concat()),
        frame(1, 0x2c, 13, &[b"\x03\0\0\0\0\x10", CALL, b"\0\0\0"].concat()),
        frame(6, 0, 0, b"01234567"),
        frame(8, 0, 0, b"\0\0\x40\0"),
        frame(3, 0, 9, b"\0\0\0\x08"),
        frame(7, 0, 0, b"\0\0\0\0\0\0\0\0"),
        frame(1, 8, 15, b"\xff\x41\x01/"),
    ];
    let sent = [PREFACE, &calls.concat()].concat();
    let broken: [&[u8]; 6] = [
        b"\xff\xff\xff\x01\x04\0\0\0\x01\x41",
        b"\0\x40\x01\x01\x04\0\0\0\x01\x41\x07/a.sock",
        b"\0\x40\0\x01\x04\0\0\0\x01\x41\x07/a.sock",
        b"\0\0\x08\x01\x04\0\0\0\x01\x41\x7f\xff\xff\xff\x7f/a",
        b"\0\0\x07\x01\x04\0\0\0\x01\x40\x7f\x80\x80\x80\x80\x01",
        b"\0\0\x04\x01",
    ];
    let mut seeds: Vec<Vec<u8>> = [0x01, 0x07, 0x7f, 0x80].iter().map(|first| [&[*first], &*sent].concat()).collect();
    // To a server, calls that end inside a frame, and single ones.
    seeds.push([&[0x80], &sent[..sent.len() / 2]].concat());
    seeds.extend([1, 6, 9, 11].map(|call| [&[0x80], PREFACE, &settings, &calls[call], &calls[2]].concat()));
    for first in [0x05, 0x80] {
        seeds.extend(broken.map(|frame| [&[first], PREFACE, &settings, frame].concat()));
    }
    seeds
}

/// `POST /pluginregistration.Registration/GetInfo` over http at `/a.sock`, with the headers of gRPC.
const CALL: &[u8] = b"\x83\x86\x44\x28/pluginregistration.Registration/GetInfo\x41\x07/a.sock\x5f\x10application/grpc\
    \x40\x02te\x08trailers";

/// `:method CONNECT` and `:authority 10.0.0.7:10250`, as literals.
const CONNECT: &[u8] = b"\x02\x07CONNECT\x01\x0e10.0.0.7:10250";

const CONFIGURATIONS: [&str; 2] = [
    "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n- issuer:\n    url: https://a.example\n    \
     audiences: [a, b]\n    audienceMatchPolicy: MatchAny\n  claimMappings:\n    username: {claim: sub, prefix: 'p:'}\n    \
     groups: {claim: groups, prefix: ''}\n  claimValidationRules: [{claim: hd, requiredValue: x}]\n\
     anonymous: {enabled: true, conditions: [{path: /healthz}]}\n",
    "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n- issuer: {url: 'https://a.example', \
     audiences: [a]}\n  claimMappings:\n    username: {expression: \"claims.sub + ':x'\"}\n    \
     groups: {expression: 'claims.groups.map(g, g)'}\n    uid: {expression: 'claims.?id.orValue(\"\")'}\n    \
     extra: [{key: example.org/a, valueExpression: claims.sub}]\n  userValidationRules: [{expression: \
     \"!user.username.startsWith('system:')\", message: m}]\n",
];

const ISSUER_DOCUMENTS: [&str; 2] = [
    r#"{"issuer":"https://issuer.example","jwks_uri":"https://issuer.example/keys"}"#,
    r#"{"keys":[{"kty":"RSA","kid":"a","use":"sig","n":"u1SU1LfVLPHCozMxH2Mo","e":"AQAB"},{"kty":"EC","crv":"P-256","kid":"b",
        "x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}"#,
];

const TOKENS: [&str; 3] = [
    "eyJhbGciOiJSUzI1NiIsImtpZCI6ImEifQ.eyJpc3MiOiJodHRwczovL2lzc3Vlci5leGFtcGxlIiwiYXVkIjoiYSIsInN1YiI6ImFubiJ9.c2ln",
    r#"{"iss":"https://issuer.example","aud":["a"],"sub":"ann","exp":1700000600,"nbf":1,"groups":["a","b"],"n":1,"id":"7"}"#,
    r#"{"sub":"","email":"a@b","email_verified":false,"_claim_names":{"groups":"s"},"_claim_sources":{"s":{"endpoint":"https://x"}}}"#,
];

/// Encrypted data, key id, encrypted seed and its type.
const KMS_VALUE: &[u8] =
    b"\x0a\x40aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\x12\x03key\x1a\x04seed\x22\x0a\x0a\x05a.b.c\x12\x01v\x28\x01";

const COMMAND_LINES: [&str; 3] = [
    "\u{0}--etcd-servers=http://127.0.0.1:2379\n--service-cluster-ip-range\n10.0.0.0/24\n--v=2\n--feature-gates=A=true,B=false",
    "\u{2}--leader-elect=false\n--kubeconfig=/k\n--authorization-always-allow-paths=/healthz,/metrics\n--",
    "\u{3}--node-labels=a=b,c=d\n--max-pods=x\n-h\n--eviction-hard=memory.available<100Mi",
];

const COMPONENT_CONFIGURATIONS: [&str; 2] = [
    "\u{3}apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 10\nevictionHard: {memory.available: 1Gi}\n\
     authentication: {anonymous: {enabled: false}}\nsyncFrequency: 1m\n",
    "\u{4}apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\nconntrack: {min: 1}\n",
];

const CSI_MESSAGES: [&[u8]; 5] = [
    b"\x00\x0a\x09CSIPlugin\x12\x01d\x1a\x0b/csi/d.sock\x22\x051.0.0",
    b"\x01\x0a\x01n\x10\x0a\x1a\x08\x0a\x06\x0a\x01a\x12\x01b",
    b"\x02\x0a\x04\x0a\x02\x08\x01",
    b"\x06\x0a\x07\x08\x0a\x12\x03vol",
    b"\x08\x0a\x0a\x08\x01\x12\x01s\x1a\x01v\x28\x01",
];

const CHARTS: [&str; 3] = [
    r#"{"chart":"nginx","repo":"https://r","version":"1","targetNamespace":"web","createNamespace":true,"timeout":"2m30s",
        "set":{"a":1,"b":"x,y","c":"true"},"valuesContent":"a: 1","failurePolicy":"abort","repoCA":"x"}"#,
    r#"{"chartContent":"dGFy","values":{"a":{"b":[1]}},"insecureSkipTLSVerify":true,"plainHTTP":true,"takeOwnership":true}"#,
    r#"{"chart":"oci://r/a","valuesSecrets":[{"name":"s","keys":["k"]}]}"#,
];

const REGISTRY: [&str; 3] = [
    "/v2/a/b/manifests/v1\nbytes=0-9\n{\"schemaVersion\":2}",
    "/v2/a/blobs/sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\nbytes=5-\n{\"schemaVersion\":2,\"layers\":[]}",
    "/v2/a/blobs/uploads/67e55044-10b1-426f-9247-bb680e5fe0c8\nbytes=-1\n{\"manifests\":[{\"digest\":\"sha256:x\"}]}",
];
