//! A reload while it is being found out who sends a request.

use std::{
    io::Write as _,
    sync::{Mutex, mpsc},
    thread,
    time::Duration,
};

use testkit::{client::get, gateway::Gateway, upstream::Upstream, yaml::fill};

/// The consumer has a plan that admits nothing, and another name in each configuration.
const RULES: &str = "
auth: {sso: {forward: {to: '{service}/verify', request_headers: [cookie], consumer: header:x-user, timeout: 30s}}}
consumers: {entries: [{name: ann, plan: {plan}}]}
plans: {{plan}: {each: 0}}
limits: {each: {quota: 100, window: 1h, key: [consumer]}}
upstreams: {app: {respond: {body: hello}}}
routes: [{name: all, match: {path: /a}, upstream: app, auth: [sso], limits: [each]}]
";

#[test]
fn a_request_keeps_the_consumers_of_its_configuration() {
    let (asked, is_asked) = mpsc::channel();
    let (answer, answers) = mpsc::channel::<()>();
    let (asked, answers) = (Mutex::new(asked), Mutex::new(answers));
    let service = Upstream::with_handler(move |_, socket| {
        asked.lock().expect("no panic").send(()).expect("the test waits");
        let go_on = answers.lock().expect("no panic").recv_timeout(Duration::from_secs(20));
        let head = b"HTTP/1.1 200 OK\r\nX-User: ann\r\nContent-Length: 0\r\n\r\n";
        go_on.is_ok() && socket.write_all(head).is_ok()
    });
    let rules =
        |plan: &str| fill(RULES, [("service", service.target()), ("plan", plan.to_owned())]);
    let gateway = Gateway::start(&rules("old"));
    let status = thread::scope(|scope| {
        let request = scope.spawn(|| get(gateway.address(), "/a", "").status);
        is_asked.recv_timeout(Duration::from_secs(20)).expect("a question");
        gateway.reload(&rules("new")).expect("a valid configuration");
        answer.send(()).expect("the service waits");
        request.join().expect("no panic")
    });
    // With the new plan, which its limits do not have, the old configuration would admit it.
    assert_eq!(status, 403);
}
