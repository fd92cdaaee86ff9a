"""The choice among several models."""

import os
import shutil
import tempfile
import time
import unittest

from selenium.webdriver.support.ui import Select

from harness import PageTest, Server, TIMEOUT

MODEL = os.path.join(os.path.dirname(__file__), "..", "fixtures", "llama_server", "model.gguf")
ANSWER = {"temperature": 0, "max_tokens": 4}


class Picker(PageTest):
    @classmethod
    def setUpClass(cls):
        # Without the models of the caches.
        cls.directory = tempfile.TemporaryDirectory()
        for name in ["alpha", "beta"]:
            shutil.copy(MODEL, os.path.join(cls.directory.name, f"{name}.gguf"))
        none = os.path.join(cls.directory.name, "none")
        caches = {"HF_HOME": none, "HF_HUB_CACHE": "", "HALFWARP_CACHE": none}
        cls.own_server = Server("--models-dir", cls.directory.name, "--models-max", "1", model=None, environment=caches)
        cls.own_server.wait_until_ready()

    @classmethod
    def tearDownClass(cls):
        cls.own_server.stop()
        cls.directory.cleanup()

    def options(self):
        return self.texts("#picker option")

    def choose(self, name):
        Select(self.find("#picker")).select_by_value(name)

    def wait_for_models(self):
        self.wait(lambda: self.find("#picker").is_displayed(), "there is no choice of models")

    def wait_for_state(self, name, state):
        """The page reads the states when it is loaded."""
        deadline = time.monotonic() + TIMEOUT
        while f"{name} ({state})" not in self.options() and time.monotonic() < deadline:
            self.load(settings=ANSWER)
            self.wait_for_models()
        self.assertIn(f"{name} ({state})", self.options())

    def test_models_are_listed_with_their_states(self):
        self.wait_for_models()
        self.assertEqual([option.split(" ")[0] for option in self.options()], ["alpha", "beta"])
        self.choose("alpha")
        self.ask("ab")
        self.wait_for_state("alpha", "loaded")
        self.wait_for_state("beta", "unloaded")
        self.assertIn("context of", self.find("#model").text)

    def test_the_chosen_model_answers_and_stays_chosen(self):
        self.wait_for_models()
        for name in ["beta", "alpha", "beta"]:
            self.choose(name)
            self.requests()
            self.ask("ab")
            self.assertEqual([request["model"] for request in self.requests()], [name])
        self.wait_for_state("beta", "loaded")
        self.assertEqual(Select(self.find("#picker")).first_selected_option.get_attribute("value"), "beta")

    def test_a_model_that_cannot_be_loaded_says_why(self):
        self.provoked = ["500", "404"]
        self.wait_for_models()
        self.choose("beta")
        self.ask("ab")
        self.choose("alpha")
        os.rename(os.path.join(self.directory.name, "alpha.gguf"), os.path.join(self.directory.name, "alpha.gone"))
        try:
            self.find("#prompt").send_keys("ab\n")
            self.assertIn("alpha", self.problem())
        finally:
            os.rename(os.path.join(self.directory.name, "alpha.gone"), os.path.join(self.directory.name, "alpha.gguf"))


class OneModel(PageTest):
    def test_there_is_nothing_to_choose(self):
        self.wait(lambda: self.find("#model").text)
        self.assertFalse(self.find("#picker").is_displayed())
        self.requests()
        self.ask("Hi")
        self.assertNotIn("model", self.requests()[0])


if __name__ == "__main__":
    unittest.main()
