"""Texts of messages: Markdown of answers, and texts that would be more than text."""

import json

from harness import PageTest

HOSTILE = """\
<img src=x onerror="window.ran = 1"> <script>window.ran = 2</script> <svg onload="window.ran = 3"></svg>

[a](javascript:window.ran=4) [b](JaVaScRiPt:window.ran=5)
[c](data:text/html,<script>window.ran=6</script>) [d](vbscript:x) [e](java&#115;cript:window.ran=7) ![f](https://127.0.0.2/pixel.png)
<https://example.com/" onclick="window.ran=8">

| <b onclick="window.ran=9">x</b> |
| --- |
| <iframe src="javascript:window.ran=10"></iframe> |

```html"><script>window.ran=11</script>
</code></pre><img src=x onerror="window.ran = 12">
```
# <style>body { display: none }</style>
"""

# What is in the messages besides text and the page's own parts.
ALIEN = """
const log = document.querySelector("#messages");
const names = "img, script, svg, iframe, style, object, embed, form, input, video, audio, link, base, meta, b";
const alien = [...log.querySelectorAll(names)].map((node) => node.outerHTML);
for (const node of log.querySelectorAll("*"))
  for (const { name, value } of node.attributes)
    if (name.startsWith("on") || name === "style" || (name === "href" && !/^(https?:|mailto:)/.test(value)))
      alien.push(`${name}=${value}`);
return alien.concat(window.ran ?? []);
"""


class Hostile(PageTest):
    def test_answer(self):
        self.load_answer(HOSTILE)
        self.assertIn("onerror", self.find(".message.assistant").text)
        self.assertEqual(self.script(ALIEN), [])
        # Links that are none are clicked in vain.
        self.script("for (const node of document.querySelectorAll('.assistant .body span')) node.click()")
        self.assertEqual(self.script(ALIEN), [])

    def test_answer_that_streams_in(self):
        events = [{"choices": [{"delta": {"content": character}}]} for character in HOSTILE]
        self.answer_with("".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n")
        self.ask("Hello")
        self.assertIn("onerror", self.find(".message.assistant").text)
        self.assertEqual(self.script(ALIEN), [])

    def test_message_of_the_user(self):
        self.load_answer("Yes.", HOSTILE)
        self.assertEqual(self.find(".message.user .body").get_property("textContent"), HOSTILE)
        self.assertEqual(self.script(ALIEN), [])
        # The list shows its name too.
        self.assertEqual(self.all("#conversations img, #conversations script"), [])

    def test_links_tell_nothing_of_the_page(self):
        self.load_answer("[one](https://example.com/) and https://example.org/x")
        for link in self.all(".assistant .body a"):
            self.assertEqual(link.get_attribute("rel"), "noopener noreferrer")
            self.assertEqual(link.get_attribute("target"), "_blank")
        self.assertEqual(len(self.all(".assistant .body a")), 2)

    def test_long_texts_do_not_stop_the_page(self):
        texts = [">" * 50_000, "- " * 20_000 + "a", "# " + " " * 20_000 + "a", "[" * 20_000]
        for text in [*texts, "**a " * 5_000, "`a " * 5_000]:
            self.load_answer(text)
            self.assertTrue(self.all(".message.assistant"), text[:10])
            self.assertLess(self.script("return performance.now()"), 10_000, text[:10])


class Markdown(PageTest):
    def tags(self, content):
        self.load_answer(content)
        return self.script(
            "const tree = (node) => node.nodeType === 3 ? node.data : "
            "`<${node.localName}>${[...node.childNodes].map(tree).join('')}</>`;"
            "return [...document.querySelector('.assistant .body').childNodes].map(tree).join('')"
        )

    def test_blocks(self):
        wanted = "<h1>A</><p>one\ntwo</><blockquote><p>three</></>"
        self.assertEqual(self.tags("# A ##\n\none\ntwo\n\n> three"), wanted)
        self.assertEqual(self.tags("1. a\n2. b\n   - c"), "<ol><li>a</><li>b<ul><li>c</></></></>")
        table = "<table><thead><tr><th>a</><th>b</></></><tbody><tr><td>1</><td>2</></></></>"
        self.assertEqual(self.tags("| a | b |\n| --- | --- |\n| 1 | 2 |"), table)

    def test_inline(self):
        wanted = "<p><strong>a</> <em>b</> <s>c</> <code>d*e*</> snake_case_ name <a>f</></>"
        self.assertEqual(self.tags("**a** *b* ~~c~~ `d*e*` snake_case_ name [f](https://example.com)"), wanted)

    def test_code_is_verbatim(self):
        self.load_answer("```python\nif a < b:\n    print('**x**')\n```\nafter")
        self.assertEqual(self.find("pre code").get_property("textContent"), "if a < b:\n    print('**x**')")
        self.assertEqual(self.find(".code span").text, "python")

    def test_code_without_its_end(self):
        self.load_answer("```\nhalf")
        self.assertEqual(self.find("pre code").text, "half")


class Copy(PageTest):
    CODE = "fn main() {\n    println!(\"<b>&amp;\");\n}"

    def clipboard(self):
        return self.driver.execute_async_script("navigator.clipboard.readText().then(arguments[0])")

    def setUp(self):
        super().setUp()
        self.load_answer(f"Here:\n\n```rust\n{self.CODE}\n```")

    def test_code(self):
        self.click(".code button")
        self.wait(lambda: self.texts(".code button") == ["Copied"])
        self.assertEqual(self.clipboard(), self.CODE)
        self.wait(lambda: self.texts(".code button") == ["Copy"])

    def test_whole_answer(self):
        self.click(".assistant .tools button", "Copy")
        self.wait(lambda: "Copied" in self.texts(".assistant .tools button"))
        self.assertEqual(self.clipboard(), f"Here:\n\n```rust\n{self.CODE}\n```")

    def test_without_the_clipboard_of_a_secure_origin(self):
        define = "Object.defineProperty(navigator, 'clipboard', { value: %s, configurable: true })"
        self.script("window.kept = navigator.clipboard; " + define % "undefined")
        self.click(".code button")
        self.wait(lambda: self.texts(".code button") == ["Copied"])
        self.script(define % "window.kept")
        self.assertEqual(self.clipboard(), self.CODE)
