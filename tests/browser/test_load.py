"""What the page is before anything is asked."""

import urllib.request

from harness import PageTest


class Load(PageTest):
    def test_no_error_in_the_console(self):
        self.wait(lambda: self.find("#model").text)
        self.assertEqual(self.driver.title, "halfwarp")
        self.assertEqual(self.console, [])

    def test_policy_allows_the_server_alone(self):
        for path in ["/", "/app.js", "/style.css"]:
            policy = urllib.request.urlopen(self.server.url + path).headers["content-security-policy"]
            rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
            self.assertEqual(rules["default-src"], "'none'")
            for name in ["script-src", "style-src", "connect-src"]:
                self.assertEqual(rules[name], "'self'")
            for name in ["base-uri", "form-action", "frame-ancestors"]:
                self.assertEqual(rules[name], "'none'")

            self.assertEqual(rules["require-trusted-types-for"], "'script'")

    def test_policy_keeps_text_from_becoming_html(self):
        self.provoked = ["'TrustedHTML' assignment"]
        self.assertEqual(self.script("""
            try { document.createElement("p").innerHTML = "<b>"; } catch (error) { return error.name; }
        """), "TypeError")

    def test_policy_keeps_the_page_from_other_servers(self):
        self.provoked = ["Content Security Policy", "Refused to connect"]
        request = "fetch('http://127.0.0.2:9/').catch((error) => error.name).then(arguments[0])"
        self.assertEqual(self.driver.execute_async_script(request), "TypeError")
        self.assertIn("Content Security Policy", str(self.driver.get_log("browser")))
