"""The page without a mouse, and for those who hear it."""

from selenium.webdriver.common.keys import Keys

from harness import PHONE, PageTest

# Every control that can be reached, in the order of the page.
CONTROLS = """
window.controls = [...document.querySelectorAll("a[href], button, input, textarea, [tabindex]")]
  .filter((node) => node.tabIndex >= 0 && node.getClientRects().length && !node.closest("dialog:not([open])"));
return controls.length;
"""
FOCUSED = "return window.controls.indexOf(document.activeElement)"

# The focused element, unless nothing around it shows the focus.
UNSEEN = """
const seen = (node) => {
  const style = getComputedStyle(node);
  return style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1;
};
const node = document.activeElement;
const tools = node.closest(".tools");
const isCovered = tools && getComputedStyle(tools).opacity < 1;
return !isCovered && (seen(node) || (node.form && seen(node.form))) ? null : node.outerHTML;
"""


class Keyboard(PageTest):
    def focus(self):
        return self.script("return document.activeElement.id")

    def test_tab_reaches_every_control_in_order(self):
        self.load_answer("One\n\n```\ntwo\n```")
        count = self.script(CONTROLS)
        self.script("document.querySelector('.skip').focus()")
        order = [self.script(FOCUSED)]
        for _ in range(count + 5):
            self.keys(Keys.TAB)
            order.append(self.script(FOCUSED))
            if order[-1] >= 0:
                self.assertIsNone(self.script(UNSEEN))
        # A scrolled box may have the focus too.
        order = [index for index in order if index >= 0]
        self.assertEqual(order[:count], list(range(count)))

    def test_first_link_skips_to_the_message_box(self):
        self.script("document.querySelector('.skip').focus()")
        self.keys(Keys.ENTER)
        self.assertEqual(self.focus(), "prompt")

    def test_focus_is_in_the_message_box(self):
        self.assertEqual(self.focus(), "prompt")
        self.keys("Hello", Keys.ENTER)
        self.assertEqual(self.focus(), "prompt")
        self.wait_for_end()
        self.click("#new-chat")
        self.assertEqual(self.focus(), "prompt")

    def test_enter_sends_and_shift_enter_is_a_new_line(self):
        self.keys("one")
        self.chord(Keys.SHIFT, Keys.ENTER)
        self.keys("two")
        self.assertEqual(self.find("#prompt").get_property("value"), "one\ntwo")
        self.assertEqual(self.texts(".message"), [])
        self.keys(Keys.ENTER)
        self.assertEqual(self.find(".message.user .body").get_property("textContent"), "one\ntwo")
        self.assertEqual(self.find("#prompt").get_property("value"), "")

    def test_enter_sends_no_empty_message(self):
        self.keys("  ", Keys.ENTER)
        self.assertEqual(self.texts(".message"), [])

    def test_escape_stops(self):
        self.load(settings={"temperature": 0})
        self.keys("Write a long story about a dog.", Keys.ENTER)
        self.wait_for_text()
        # In a dialog it closes that alone.
        self.click("#open-settings")
        self.keys(Keys.ESCAPE)
        self.assertTrue(self.find("#stop").is_displayed())
        self.keys(Keys.ESCAPE)
        self.wait_for_end()
        self.wait(lambda: self.server.metric("num_requests_running") == 0, "the request still runs")

    def test_new_conversation(self):
        self.ask("Hello")
        self.chord(Keys.CONTROL, Keys.SHIFT, "o")
        self.assertEqual(self.texts(".message"), [])

    def test_arrows_change_the_tab(self):
        self.script("document.querySelector('#tab-chat').focus()")
        self.keys(Keys.ARROW_RIGHT)
        self.assertEqual(self.focus(), "tab-figures")
        self.assertTrue(self.find("#figures").is_displayed())
        self.keys(Keys.ARROW_LEFT)
        self.assertTrue(self.find("#chat").is_displayed())

    def test_list_of_conversations_on_a_phone(self):
        self.size(*PHONE)
        for key in [Keys.ENTER, Keys.ESCAPE]:
            self.script("document.querySelector('#open-sidebar').focus()")
            self.keys(Keys.ENTER)
            self.assertEqual(self.focus(), "close-sidebar")
            self.assertEqual(self.find("#open-sidebar").get_attribute("aria-expanded"), "true")
            self.keys(key)
            self.assertEqual(self.focus(), "open-sidebar")
            self.assertFalse(self.find("#sidebar").is_displayed())


class Spoken(PageTest):
    def test_controls_have_names(self):
        self.load_answer("One\n\n```\ntwo\n```")
        for control in self.all(":is(aside, main) :is(button, textarea, a), aside, [role=log]"):
            if self.script("return arguments[0].getClientRects().length", control):
                self.assertTrue(control.accessible_name, control.get_attribute("outerHTML"))
        self.click("#open-settings")
        for control in self.all("dialog, dialog :is(button, input, textarea)"):
            self.assertTrue(control.accessible_name, control.get_attribute("outerHTML"))
        # Their placeholder is no label.
        for control in self.all("input, textarea"):
            label = "return arguments[0].labels.length > 0 || arguments[0].hasAttribute('aria-label')"
            self.assertTrue(self.script(label, control), control.get_attribute("id"))

    def test_answer_is_announced_at_its_end(self):
        log = self.find("#messages")
        self.assertEqual((log.aria_role, log.get_attribute("aria-live")), ("log", "polite"))
        self.keys("Hello", Keys.ENTER)
        self.assertEqual(log.get_attribute("aria-busy"), "true")
        self.wait_for_end()
        self.assertEqual(log.get_attribute("aria-busy"), "false")

    def test_problems_are_announced(self):
        for problem in self.all(".problem"):
            self.assertEqual(problem.get_attribute("role"), "alert")

    def test_page_has_a_language_and_a_heading(self):
        self.assertEqual(self.script("return document.documentElement.lang"), "en")
        self.assertEqual(self.texts("h1"), ["halfwarp"])
