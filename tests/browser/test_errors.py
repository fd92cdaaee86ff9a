"""What the server refuses, or does not answer, is said in a sentence."""

import json

from selenium.webdriver.common.keys import Keys

from harness import PageTest, Server

# Console entries of responses that are errors.
REFUSED = "Failed to load resource"


class Errors(PageTest):
    provoked = (REFUSED,)

    def test_refusal_of_a_request(self):
        self.load(settings={"temperature": -1})
        self.find("#prompt").send_keys("Hello", Keys.ENTER)
        self.assertEqual(self.problem(), "Temperature -1: it has to be 0 or more.")
        # The message stays, and can be sent again.
        self.assertEqual(self.texts(".message .body"), ["Hello"])
        self.click("#open-settings")
        self.find("#set-temperature").clear()
        self.find("#set-max_tokens").send_keys("3")
        self.click("#settings .primary")
        self.click(".message.user button", "Edit")
        self.keys(Keys.ESCAPE)
        self.click(".message.user button", "Try again")
        self.wait_for_text()
        self.wait_for_end()
        self.assertFalse(self.find("#problem").is_displayed())

    def test_conversation_that_is_too_long(self):
        self.script("document.querySelector('#prompt').value = 'word '.repeat(3000)")
        self.find("#prompt").send_keys("end", Keys.ENTER)
        self.assertRegex(self.problem(), r"^[A-Z].*2048.*\.$")

    def test_error_in_the_middle_of_an_answer(self):
        events = [{"choices": [{"delta": {"content": "So far"}}]}, {"error": {"message": "the device failed"}}]
        self.answer_with("".join(f"data: {json.dumps(event)}\n\n" for event in events))
        self.find("#prompt").send_keys("Hello", Keys.ENTER)
        self.assertEqual(self.problem(), "The device failed.")
        self.assertEqual(self.texts(".message.assistant .body"), ["So far"])

    def test_answer_that_breaks_off(self):
        self.answer_with('data: {"choices": [{"delta": {"content": "So"}}]}\n\n')
        self.find("#prompt").send_keys("Hello", Keys.ENTER)
        self.assertEqual(self.problem(), "The connection ended before the answer did.")

    def test_model_that_loads_is_waited_for(self):
        self.script("""
            const [text, ask] = [JSON.stringify({ error: { message: "the model is loading" } }), window.fetch];
            let left = 2;
            window.fetch = (...request) => left-- > 0 ? new Response(text, { status: 503 }) : ask(...request);
        """)
        # Asks for the model again.
        self.click("#open-settings")
        self.click("#settings .primary")
        self.assertEqual(self.problem(), "The model is loading.")
        self.wait(lambda: not self.find("#problem").is_displayed(), "the page does not wait for the model")


class Stopped(PageTest):
    provoked = (REFUSED,)

    def setUp(self):
        self.own_server = Server()
        self.addCleanup(self.own_server.stop)
        self.own_server.wait_until_ready()
        super().setUp()

    def test_end_of_the_server(self):
        wanted = "The server does not answer. Is it still running?"
        self.server.stop()
        self.find("#prompt").send_keys("Hello", Keys.ENTER)
        self.assertEqual(self.problem(), wanted)
        self.click("#tab-figures")
        self.wait(lambda: self.find("#figures-problem").is_displayed(), "the figures show no problem")
        self.assertEqual(self.find("#figures-problem").text, wanted)

    def test_end_of_the_server_in_the_middle_of_an_answer(self):
        self.load(settings={"temperature": 0})
        self.find("#prompt").send_keys("Write a long story about a dog.", Keys.ENTER)
        self.wait_for_text()
        self.server.process.kill()
        self.assertRegex(self.problem(), r"^The (server does not answer|connection ended)")
        self.assertTrue(self.texts(".message.assistant .body")[0])
        self.assertTrue(self.find("#send").is_displayed())


class Key(PageTest):
    provoked = ("401 (Unauthorized)",)
    WANTED = "This server wants an API key: give it in the settings."

    @classmethod
    def setUpClass(cls):
        cls.own_server = Server("--api-key", "secret")
        cls.addClassCleanup(cls.own_server.stop)
        cls.own_server.wait_until_ready()

    def give(self, key):
        self.click("#open-settings")
        self.find("#set-key").clear()
        self.find("#set-key").send_keys(key, Keys.ENTER)

    def test_page_asks_for_a_key_and_sends_it(self):
        self.assertEqual(self.problem(), self.WANTED)
        self.give("secret")
        self.wait(lambda: not self.find("#problem").is_displayed(), "the key does not help")
        self.assertTrue(self.ask("Hello"))
        self.click("#tab-figures")
        self.wait(lambda: self.all("#tiles dd"), "the figures do not send the key")
        # It outlives a reload, but is not stored for good.
        self.driver.refresh()
        self.wait(lambda: self.find("#model").text, "the key is lost")
        self.assertNotIn("secret", self.script("return JSON.stringify(localStorage)"))

    def test_wrong_key(self):
        self.give("wrong")
        self.find("#prompt").send_keys("Hello", Keys.ENTER)
        self.assertEqual(self.problem(), self.WANTED)
