//! The page to chat.

use crate::client::{Client, agent};

pub fn the_page_is_there(client: &Client) {
    let page = client.get("/").text;
    assert!(page.starts_with("<!doctype html>"), "{page}");
    // What the page names is there too, and comes from nowhere else.
    let names = [
        "style.css",
        "app.js",
        "api.js",
        "copy.js",
        "figures.js",
        "markdown.js",
        "picker.js",
        "settings.js",
        "store.js",
    ];
    assert!(page.contains(names[0]) && page.contains(names[1]) && !page.contains("http"), "{page}");
    for name in names {
        assert_eq!(client.get(&format!("/{name}")).status, 200, "{name}");
    }
    let reply = agent().get(format!("{}/", client.base)).call().unwrap();
    let policy = reply.headers()["content-security-policy"].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{policy}");
}
