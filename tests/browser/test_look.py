"""How the page looks: dark and light, on a phone, and the contrast of its texts."""

from harness import DESKTOP, PHONE, PageTest

ANSWER = """\
## Reading a file

Open it with **`open`**, which closes it at the *end of the block*; see [the manual](https://docs.python.org/3/).

```python
def longest_line(path):
    with open(path, encoding="utf-8") as lines:
        return max((line.rstrip() for line in lines), key=len, default="")  # An empty file has no line.
```

1. A list
2. with `code` and ~~what is struck out~~
   - and one inside

> Errors should never pass silently.

| mode | what |
| --- | --- |
| `r` | reads, and fails where there is no file of that name |
| `w` | writes anew |
"""

# Texts with less contrast to what is behind them than WCAG's level AA asks for.
LOW_CONTRAST = r"""
const luminance = (rgb) => {
  const [r, g, b] = rgb.map((x) => x / 255).map((x) => (x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const parse = (color) => color.match(/[\d.]+/g).map(Number);
const over = ([r, g, b, a = 1], below) => [r, g, b].map((x, i) => a * x + (1 - a) * below[i]);
const behind = (node) => {
  const color = parse(getComputedStyle(node).backgroundColor);
  return color[3] === undefined ? color : over(color, behind(node.parentElement));
};
const low = [];
for (const node of document.querySelectorAll("body, body *")) {
  const isText = [...node.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.data.trim());
  const styles = isText ? [getComputedStyle(node)] : [];
  if (node.placeholder) styles.push(getComputedStyle(node, "::placeholder"));
  if (!node.checkVisibility({ visibilityProperty: true })) continue;
  for (const { color } of styles) {
    const back = behind(node);
    const [darker, lighter] = [luminance(over(parse(color), back)), luminance(back)].sort((a, b) => a - b);
    const contrast = (lighter + 0.05) / (darker + 0.05);
    if (contrast < 4.5) low.push(`${node.tagName}.${node.className}#${node.id} ${contrast.toFixed(2)}`);
  }
}
return low;
"""

# What sticks out at the right. Code and tables scroll.
TOO_WIDE = """
const width = document.documentElement.clientWidth;
const scrolls = (node) => {
  const box = node.parentElement.closest("pre, table");
  return box && getComputedStyle(box).overflowX === "auto";
};
const wide = [...document.querySelectorAll("body *")].filter((node) => {
  const isWide = node.getBoundingClientRect().right > width + 0.5;
  return isWide && node.checkVisibility({ visibilityProperty: true }) && !scrolls(node);
});
if (document.documentElement.scrollWidth > width) wide.push(document.documentElement);
return wide.map((node) => `${node.tagName}.${node.className}#${node.id}`);
"""

# Controls that a finger misses; a link inside a sentence is as high as its line.
TOO_SMALL = """
return [...document.querySelectorAll("button, input, textarea, summary")].filter((node) => {
  const { width, height } = node.getBoundingClientRect();
  return node.checkVisibility({ visibilityProperty: true }) && (width < 40 || height < 40);
}).map((node) => `${node.tagName}#${node.id} ${node.textContent} ${JSON.stringify(node.getBoundingClientRect())}`);
"""

PAPER = "return getComputedStyle(document.body).backgroundColor"


class Look(PageTest):
    provoked = ("400 (Bad Request)",)

    def views(self):
        """Shows every view of the page in turn."""
        yield "empty"
        self.load_answer(ANSWER, "How do I read a file in Python, and what is its longest line?")
        yield "answer"
        self.show_problem()
        yield "problem"
        self.find("#open-settings").click()
        yield "settings"
        self.click("#cancel")
        self.find("#tab-figures").click()
        self.wait(lambda: self.all("#tiles dd"))
        yield "figures"

    def show_problem(self):
        self.load(settings={"temperature": -1})
        self.find("#prompt").send_keys("And in Rust?\n")
        self.problem()

    def test_dark_and_light_as_the_system_is(self):
        for scheme, color in [("dark", "rgb(20, 23, 26)"), ("light", "rgb(255, 255, 255)")]:
            self.scheme(scheme)
            self.assertEqual(self.script(PAPER), color)

    def test_button_of_the_theme_outlives_a_reload(self):
        self.find("#theme").click()
        dark = self.script(PAPER)
        self.assertEqual(dark, "rgb(20, 23, 26)")
        self.driver.refresh()
        self.assertEqual(self.script(PAPER), dark)
        self.find("#theme").click()
        self.scheme("dark")
        self.assertEqual(self.script(PAPER), "rgb(255, 255, 255)")

    def test_contrast_of_texts(self):
        for view in self.views():
            for scheme in ["light", "dark"]:
                self.scheme(scheme)
                self.assertEqual(self.script(LOW_CONTRAST), [], f"{view}, {scheme}")

    def test_nothing_sticks_out(self):
        for view in self.views():
            for size in [PHONE, (320, 568), (820, 1180), DESKTOP]:
                self.size(*size)
                self.assertEqual(self.script(TOO_WIDE), [], f"{view}, {size}")
                if view == "settings":
                    box = self.find("#settings").rect
                    self.assertLessEqual(box["y"] + box["height"], size[1], size)
            self.size(*DESKTOP)

    def test_controls_of_a_phone_are_large_enough(self):
        for view in self.views():
            self.size(*PHONE)
            self.assertEqual(self.script(TOO_SMALL), [], view)
        self.click("#tab-chat")
        self.click("#open-sidebar")
        self.assertEqual(self.script(TOO_SMALL), [], "sidebar")

    def test_screenshots(self):
        for view in self.views():
            for scheme in ["light", "dark"]:
                self.scheme(scheme)
                self.screenshot(f"{view}-{scheme}")
            self.size(*PHONE)
            self.screenshot(f"{view}-phone")
            self.size(*DESKTOP)
            self.scheme("light")
        self.size(*PHONE)
        self.click("#tab-chat")
        self.click("#open-sidebar")
        self.screenshot("sidebar-phone")
