"""Messages and answers."""

import json

from selenium.webdriver.common.keys import Keys

from harness import PageTest

STORY = "Write a long story about a dog."


class Chat(PageTest):
    def without_limit(self):
        self.load(settings={"temperature": 0})

    def test_answer_streams_in(self):
        self.script("""
            window.lengths = new Set();
            const note = () => lengths.add(document.querySelector(".assistant .body")?.textContent.length ?? 0);
            const log = document.querySelector("#messages");
            new MutationObserver(note).observe(log, { childList: true, subtree: true });
        """)
        answer = self.ask("What is the capital of France?")
        self.assertIn("Paris", answer)
        lengths = self.script("return [...lengths]")
        self.assertGreater(len(lengths), 4, lengths)
        self.assertEqual(lengths, sorted(lengths))
        self.assertEqual(self.texts(".message.user .body"), ["What is the capital of France?"])
        self.assertTrue(self.find("#send").is_displayed())

    def test_speed_and_context_are_shown(self):
        self.ask(STORY)
        number = r"\d+(\.\d)?"
        wanted = rf"^\d+ tokens · {number} tokens/s · first token after \d+ ms · context \d+ of 2048"
        self.assertRegex(self.find("#status").text, wanted)
        self.screenshot("status")
        self.assertIn("cut off at the limit", self.find("#status").text)
        self.assertIn("context of 2048 tokens", self.find("#model").text)

    def test_stop_ends_the_answer_and_the_request(self):
        # The page of another test was left in the middle of its answer.
        self.wait(lambda: self.server.metric("num_requests_running") == 0, "an earlier request runs")
        self.without_limit()
        self.find("#prompt").send_keys(STORY, Keys.ENTER)
        self.wait_for_text()
        self.assertEqual(self.server.metric("num_requests_running"), 1)
        self.click("#stop")
        self.wait_for_end()
        self.wait(lambda: self.server.metric("num_requests_running") == 0, "the request still runs")
        self.assertEqual(self.find("#status").text, "Stopped.")
        # What had come stays.
        self.assertTrue(self.texts(".message.assistant .body")[0])
        self.driver.refresh()
        self.assertTrue(self.texts(".message.assistant .body")[0])

    def test_reasoning_is_folded_and_goes_back(self):
        def event(**delta):
            return "data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}) + "\n\n"

        thought = event(reasoning_content="Let me ") + event(reasoning_content="see.")
        self.answer_with(thought + event(content="Yes.") + "data: [DONE]\n\n")
        self.assertEqual(self.ask("Is it so?"), "Yes.")
        self.assertEqual(self.texts(".reasoning summary"), ["Thought"])
        self.assertFalse(self.find(".reasoning div").is_displayed())
        self.click(".reasoning summary")
        self.assertEqual(self.find(".reasoning div").text, "Let me see.")
        self.driver.refresh()
        self.requests()
        self.ask("Sure?")
        answer = self.requests()[0]["messages"][1]
        self.assertEqual(answer, {"role": "assistant", "content": "Yes.", "reasoning_content": "Let me see."})

    def test_regenerate(self):
        self.ask("Hello")
        self.requests()
        self.click(".message.assistant button", "Regenerate")
        self.wait_for_text()
        self.wait_for_end()
        sent = [request["messages"] for request in self.requests()]
        self.assertEqual(sent, [[{"role": "user", "content": "Hello"}]])
        self.assertEqual(len(self.all(".message")), 2)

    def test_edit_drops_what_came_after(self):
        self.ask("Hello")
        self.ask("Good bye")
        self.requests()
        self.click(".message.user button", "Edit")
        self.assertEqual(self.script("return document.activeElement.value"), "Hello")
        self.keys(" there", Keys.ENTER)
        self.wait_for_text()
        self.wait_for_end()
        self.assertEqual(self.requests()[0]["messages"], [{"role": "user", "content": "Hello there"}])
        self.assertEqual(self.texts(".message.user .body"), ["Hello there"])

    def test_edit_is_cancelled_by_escape(self):
        self.ask("Hello")
        self.click(".message.user button", "Edit")
        self.keys(" there", Keys.ESCAPE)
        self.assertEqual(self.texts(".message.user .body"), ["Hello"])
        self.assertEqual(self.script("return document.activeElement.textContent"), "Edit")

    def test_edit_while_an_answer_runs(self):
        self.without_limit()
        self.find("#prompt").send_keys(STORY, Keys.ENTER)
        self.wait_for_text()
        self.click(".message.user button", "Edit")
        self.keys(Keys.ESCAPE)
        before = self.texts(".message.assistant .body")[0]
        self.wait(lambda: self.texts(".message.assistant .body")[0] != before, "the answer stands still")
        self.click(".message.user button", "Edit")
        self.keys(" Or a cat.", Keys.ENTER)
        self.wait_for_text()
        before = self.texts(".message.assistant .body")[0]
        self.wait(lambda: self.texts(".message.assistant .body")[0] != before, "the new answer stands still")
        self.assertTrue(self.find("#stop").is_displayed())
        self.assertEqual(self.server.metric("num_requests_running"), 1)

    def test_the_end_of_an_answer_leaves_an_edit_alone(self):
        self.find("#prompt").send_keys("Hello", Keys.ENTER)
        self.click(".message.user button", "Edit")
        self.keys(" there")
        self.wait_for_end()
        self.assertEqual(self.script("return document.activeElement.value"), "Hello there")

    def test_messages_of_a_conversation_go_together(self):
        first = self.ask("My name is Ann.")
        self.requests()
        self.ask("What is my name?")
        sent = [(message["role"], message["content"]) for message in self.requests()[0]["messages"]]
        wanted = [("user", "My name is Ann."), ("assistant", first), ("user", "What is my name?")]
        self.assertEqual(sent, wanted)

    def test_message_box_grows_with_its_text(self):
        low = self.find("#prompt").size["height"]
        self.find("#prompt").send_keys("long words " * 40)
        self.assertGreater(self.find("#prompt").size["height"], 2 * low)
        self.find("#prompt").clear()
        self.find("#prompt").send_keys("a", Keys.ENTER)
        self.assertEqual(self.find("#prompt").size["height"], low)


class Settings(PageTest):
    def save(self, **values):
        self.click("#open-settings")
        for name, value in values.items():
            self.find(f"#set-{name}").clear()
            self.find(f"#set-{name}").send_keys(value)
        self.click("#settings .primary")

    def test_system_prompt_and_sampling_are_sent(self):
        self.requests()
        sampling = {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.05, "max_tokens": 3, "seed": 7}
        self.save(system="Be brief.", **{name: str(value) for name, value in sampling.items()})
        self.driver.refresh()
        self.ask("Hello")
        request = self.requests()[0]
        self.assertEqual(request["messages"][0], {"role": "system", "content": "Be brief."})
        self.assertEqual({name: request.get(name) for name in sampling}, sampling)
        self.assertRegex(self.find("#status").text, "^3 tokens")

    def test_empty_settings_are_the_models(self):
        self.load(settings={"max_tokens": 1, "temperature": 0})
        self.requests()
        self.save(temperature="")
        self.ask("Hello")
        self.assertEqual(set(self.requests()[0]), {"messages", "max_tokens", "stream", "stream_options"})

    def test_escape_saves_nothing(self):
        self.save(system="Be brief.")
        self.click("#open-settings")
        self.find("#set-system").send_keys(" Very.")
        self.keys(Keys.ESCAPE)
        self.click("#open-settings")
        self.assertEqual(self.find("#set-system").get_property("value"), "Be brief.")

    def test_values_out_of_range_are_not_saved(self):
        self.save(top_p="2")
        self.assertTrue(self.find("#settings").is_displayed())
        self.click("#cancel")
        self.assertFalse(self.find("#settings").is_displayed())
