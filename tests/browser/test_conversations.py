"""Conversations, which stay in the browser."""

from selenium.webdriver.common.keys import Keys

from harness import PageTest


class Conversations(PageTest):
    def names(self):
        return self.texts("#conversations .name")

    def test_outlive_a_reload(self):
        answer = self.ask("Hello")
        self.click("#new-chat")
        self.assertEqual(self.texts(".message"), [])
        self.ask("Good bye")
        self.driver.refresh()
        self.assertEqual(self.names(), ["Good bye", "Hello"])
        self.click("#conversations .name", "Hello")
        self.assertEqual(self.texts(".message .body"), ["Hello", answer])
        self.assertEqual(self.texts("#conversations [aria-current]"), ["Hello"])

    def test_delete(self):
        said = {name: [{"role": "user", "content": name}] for name in ["one", "two"]}
        self.load(conversations=[{"id": name, "name": name, "messages": said[name]} for name in said])
        self.click("#conversations [aria-label='Delete two']")
        self.assertEqual(self.names(), ["one"])
        # The open one.
        self.click("#conversations [aria-label='Delete one']")
        self.assertEqual(self.names(), [])
        self.assertIn("Ask something", self.find("#messages").text)
        self.driver.refresh()
        self.assertEqual(self.names(), [])

    def test_another_conversation_ends_the_answer(self):
        self.load(settings={"temperature": 0})
        self.find("#prompt").send_keys("Write a long story.", Keys.ENTER)
        self.wait_for_text()
        self.click("#new-chat")
        self.wait(lambda: self.server.metric("num_requests_running") == 0, "the request still runs")
        # Nothing of it is seen here.
        self.assertEqual((self.find("#status").text, self.texts(".message")), ("", []))
        self.click("#conversations .name")
        self.assertTrue(self.texts(".message.assistant .body")[0])

    def test_reload_keeps_what_an_answer_has_so_far(self):
        self.load(settings={"temperature": 0})
        self.find("#prompt").send_keys("Write a long story.", Keys.ENTER)
        self.wait_for_text()
        self.driver.refresh()
        self.assertTrue(self.texts(".message.assistant .body")[0])

    def test_full_storage_is_reported(self):
        self.script("""
            for (let size = 1 << 22; size >= 1; size >>= 1)
              try { localStorage.x += "x".repeat(size); } catch {}
        """)
        self.ask("Hello")
        self.assertEqual(self.find("#problem").text, "This browser stores no more: delete a conversation.")
